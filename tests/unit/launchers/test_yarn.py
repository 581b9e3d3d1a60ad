"""The pure half of the YARN launcher: applications against golden files, what a cluster can give, tables."""

import json
import os
import sys
import sysconfig
import types
from pathlib import Path

import pytest
from tfcollective_launchers.yarn.application import (
    Amount,
    application,
    containers_for_ranks,
    further_requests,
    plan_containers,
    requests,
)
from tfcollective_launchers.yarn.cluster import NodeView, impossible, shortage
from tfcollective_launchers.yarn.environment import archives_of, environment_of, pack_directories
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.table import render_table

from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective._base.failures import ExitReason, ExitRecord
from tfcollective._base.task_specs import NodeLabel, TaskSpec, trainers_of
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Placement
from tfcollective._launch.hosted.messages import ContainerRow, HostedOutcome
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.plan.planner import plan_newcomer
from tfcollective._launch.plan.spec import JobSpec

GOLDEN = Path(__file__).with_name("golden")
STAGED = {"tfcollective-job.json": "/tmp/x/tfcollective-job.json", "tfcollective.key": "/tmp/x/tfcollective.key"}


def job(specs, **fields):
    tasks = trainers_of(specs)
    return JobSpec(("python", "train.py"), len(tasks), tasks=tasks, task_specs=specs, **fields)


JOBS = {
    "plain": (
        job({"chief": TaskSpec("2 GiB", 2), "worker": TaskSpec("1 GiB", 4, instances=2, nb_proc_per_worker=2)}),
        YarnOptions(python="/opt/env/bin/python"),
        {},
    ),
    "everything": (
        job(
            {"chief": TaskSpec("2 GiB", 2), "worker": TaskSpec("8 GiB", 4, gpus=2, label=NodeLabel.GPU)},
            env={"DATA": "hdfs://data", "PYTHONPATH": "lib"},
            log_level="info",
        ),
        YarnOptions(
            queue="research",
            name="wine",
            archive={"": "hdfs:///envs/cpu.pex", "gpu": "hdfs:///envs/gpu.pex.zip"},
            files={"data.csv": "/data/data.csv", "lib": "/tmp/x/lib.zip"},
            acls={"view_users": ["*"]},
            file_systems=("hdfs://other",),
            pre_script_hook="ulimit -c 0\nexport A=1",
            master_memory="2 GiB",
            master_vcores=2,
            docker_image="registry.example/training:7",
            docker_mounts=("/data:/data:ro", "/scratch:/scratch:rw"),
            docker_network="host",
        ),
        {"": "hdfs:///envs/cpu.pex", "gpu": "hdfs:///envs/gpu.pex.zip"},
    ),
}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_application_is_that_of_the_golden_file(name):
    """TFC_UPDATE_GOLDEN=1 writes the files anew."""
    spec, options, archives = JOBS[name]
    text = json.dumps(application(spec, options, STAGED, archives), indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"yarn_{name}.json"
    if os.environ.get("TFC_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", sorted(JOBS))
def test_skein_takes_the_application(name):
    skein = pytest.importorskip("skein", reason="the extra yarn is not installed")
    spec, options, archives = JOBS[name]
    made = skein.ApplicationSpec.from_dict(application(spec, options, STAGED, archives))
    assert {key: service.resources.memory for key, service in made.services.items()} == {
        request.name: request.amount.memory for request in requests(spec)
    }


def test_ranks_go_to_containers_of_their_own_roles():
    spec, _, _ = JOBS["plain"]
    plan = plan_containers(spec, {})
    assert [(worker.rank, str(worker.task), worker.host, worker.local_rank) for worker in plan.workers] == [
        (0, "chief:0", "chief-0", 0),
        (1, "worker:0", "worker-0", 0),
        (2, "worker:1", "worker-0", 1),
        (3, "worker:2", "worker-1", 0),
        (4, "worker:3", "worker-1", 1),
    ]
    assert [worker.env["OMP_NUM_THREADS"] for worker in plan.workers] == ["2"] * 5


def test_a_number_alone_means_so_many_workers():
    assert [request.name for request in requests(JobSpec(("a",), 3))] == ["worker-0", "worker-1", "worker-2"]


def test_an_elastic_job_has_services_for_growth():
    specs = {
        "chief": TaskSpec("1 GiB", 1),
        "worker": TaskSpec("2 GiB", 2, instances=2, nb_proc_per_worker=2, min_instances=1),
        "evaluator": TaskSpec("1 GiB", 1),
    }
    spec = job(specs, max_proc=8)
    later = further_requests(spec)
    assert [(one.name, one.amount.memory, one.processes, one.later) for one in later] == [
        ("worker-2", 2048, 2, True),
        ("worker-3", 2048, 2, True),  # of which one rank will do
    ]
    services = application(spec, YarnOptions(python="/p"), STAGED, {})["services"]
    assert {name: one["instances"] for name, one in services.items()} == {
        "chief-0": 1,
        "worker-0": 1,
        "worker-1": 1,
        "evaluator-0": 1,
        "worker-2": 0,
        "worker-3": 0,
    }
    assert services["worker-3"]["resources"] == services["worker-0"]["resources"]
    hosts = ["chief-0:1", "worker-0:2", "worker-1:2", "worker-2:2", "worker-3:2"]
    assert [str(host) for host in containers_for_ranks(spec)] == hosts
    assert further_requests(job(specs)) == ()
    assert further_requests(JobSpec(("a",), 2)) == ()
    assert [one.name for one in further_requests(JobSpec(("a",), 2, min_proc=1, max_proc=3))] == ["worker-2"]


def test_a_replacement_stays_in_its_gpu_container():
    spec, _, _ = JOBS["everything"]
    plan = plan_containers(spec, {})
    place = Placement(1, 2, 0, 1, 1, 2)
    made = plan_newcomer(spec, plan, TaskKey("worker", 1), 2, Slot("worker-1", 0), place)
    assert made.env["TFCOLLECTIVE_NODE_ID"] == made.host == "worker-1"
    assert made.env["OMP_NUM_THREADS"] == plan.workers[1].env["OMP_NUM_THREADS"]


def test_a_container_with_gpus_is_a_node():
    """Its processes see only their own devices, whatever other containers the host has."""
    spec, _, _ = JOBS["everything"]
    chief, worker = plan_containers(spec, {}).workers
    assert "TFCOLLECTIVE_NODE_ID" not in chief.env
    assert worker.env["TFCOLLECTIVE_NODE_ID"] == "worker-0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"python": "/a", "archive": "/b.pex"}, "not both"),
        ({"files": {"a/b": "/c"}}, "files .*: expected a name without directories"),
        ({"acls": {"everybody": True}}, "acls: unknown field 'everybody'"),
        ({"master_memory": "much"}, "memory: expected a number"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        YarnOptions.of(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"docker_mounts": ["/data:/data:ro"]}, "docker_mounts and docker_network need docker_image"),
        ({"docker_network": "host"}, "docker_mounts and docker_network need docker_image"),
        ({"docker_image": "a", "docker_mounts": ["/data:/data"]}, "expected SOURCE:TARGET:ro or SOURCE:TARGET:rw"),
        ({"docker_image": "a", "docker_mounts": ["/a:/b:ro,/etc:/etc:rw"]}, "expected SOURCE:TARGET:ro"),
        ({"docker_image": "a", "docker_mounts": ["data:/data:ro"]}, "got 'data:/data:ro'"),
    ],
)
def test_unusable_docker_options_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        YarnOptions.of(options)


def test_only_the_owner_may_look_by_default():
    assert YarnOptions().acl_fields() == {
        "enable": True,
        "view_users": [],
        "view_groups": [],
        "modify_users": [],
        "modify_groups": [],
        "ui_users": [],
    }


@pytest.mark.parametrize(
    ("python", "archive", "interpreter"),
    [
        ("/opt/my env/bin/python", None, "'/opt/my env/bin/python'"),
        (None, "hdfs:///e/env.pex", '"$PWD/env.pex"'),
        (None, "/e/env.pex.zip", '"$PWD/environment/__main__.py"'),
        (None, "/e/venv.tar.gz", '"$PWD/environment/bin/python"'),
    ],
)
def test_the_interpreter_of_an_environment(python, archive, interpreter):
    assert environment_of(python, archive).interpreter == interpreter


def test_environments_that_cannot_be_used():
    with pytest.raises(ConfigError, match="an absolute path on the nodes"):
        environment_of("python3", None)
    with pytest.raises(ConfigError, match=r"expected a \.pex, .* file, got '/e/env.rar'"):
        environment_of(None, "/e/env.rar")
    with pytest.raises(ConfigError, match=r"/nowhere/env.pex does not exist"):
        archives_of(YarnOptions(archive="/nowhere/env.pex"))


def test_a_directory_is_packed_without_its_own_name(tmp_path):
    source = tmp_path / "code"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file.txt").write_text("x")
    packed = pack_directories({"lib": str(source), "far": "hdfs:///a"}, tmp_path)
    import zipfile

    assert zipfile.ZipFile(packed["lib"]).namelist() == ["deep/", "deep/file.txt"]
    assert packed["far"] == "hdfs:///a"
    with pytest.raises(ConfigError, match="missing does not exist"):
        pack_directories({"a": str(tmp_path / "missing")}, tmp_path)


@pytest.fixture
def cluster_pack(monkeypatch, tmp_path):
    """A stand-in that notes what it is asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = types.ModuleType("cluster_pack")
    module.asked, module.error, module.path = [], None, []

    def upload_env(**arguments):
        module.asked.append(arguments)
        module.path.append(os.environ["PATH"].split(os.pathsep)[0])
        if module.error is not None:
            raise module.error
        return arguments["package_path"], "name"

    module.upload_env = upload_env
    monkeypatch.setitem(sys.modules, "cluster_pack", module)
    return module


def test_the_running_environment_is_packed_once(cluster_pack, tmp_path):
    pack, before = {"additional_indexes": ["/wheels"]}, os.environ["PATH"]
    (first,) = archives_of(YarnOptions(pack=pack)).values()
    assert archives_of(YarnOptions()) == {"": first}  # cluster-pack itself sees whether it is up to date
    assert Path(first).parent == tmp_path / "cache/tfcollective/environments"
    assert first.endswith(".pex")
    assert cluster_pack.asked[0] == {"package_path": first, "include_pex_tools": True, **pack}
    assert cluster_pack.path[0] == sysconfig.get_path("scripts")  # where pex is, activated or not
    assert os.environ["PATH"] == before
    assert archives_of(YarnOptions(python="/python")) == {}
    with pytest.raises(ConfigError, match="nothing is packed where python or archive is given"):
        YarnOptions(python="/python", pack=pack)


def test_an_environment_that_cannot_be_packed_explains(cluster_pack):
    cluster_pack.error = RuntimeError("pip: trying\n  ERROR: No matching distribution found for tfcollective==1.0\n")
    with pytest.raises(LaunchError, match=r"\(ERROR: No matching distribution found .*==1.0\).*additional_"):
        archives_of(YarnOptions())


def node(name, memory, vcores, labels=(), used=0, gpus=0):
    return NodeView(name, frozenset(labels), Amount(memory, vcores, gpus), Amount(used, 0))


def test_what_a_cluster_can_never_give():
    nodes = [node("a", 4096, 8), node("b", 8192, 8, ["gpu"])]
    assert impossible(requests(job({"worker": TaskSpec("4 GiB", 8)})), nodes) == ()
    (large,) = impossible(requests(job({"worker": TaskSpec("6 GiB", 1, 3)})), nodes)
    assert large == (
        "worker: 6144 MiB, 1 vcores for one container; the largest node that it may use has 4096 MiB, 8 vcores (a)"
    )
    assert impossible(requests(job({"worker": TaskSpec("6 GiB", 1, label="gpu")})), nodes) == ()
    (gpus,) = impossible(requests(job({"worker": TaskSpec("1 GiB", 1, label="gpu", gpus=1)})), nodes)
    assert "1 gpus for one container" in gpus
    (label,) = impossible(requests(job({"chief": TaskSpec("1 GiB", 1, label="tpu")})), nodes)
    assert label == "chief: no node has the label 'tpu'; the labels are gpu"
    assert impossible((), []) == ("the cluster has no node that runs",)


def test_a_shortage_names_what_is_free():
    nodes = [node("a", 4096, 8, used=4000), node("b", 8192, 8, ["gpu"])]
    assert shortage(requests(job({"worker": TaskSpec("1 GiB", 1)})), nodes) == "free now: a: 96 MiB, 8 vcores"


def test_the_table_has_a_row_for_every_task():
    exits = (
        ExitRecord("chief:0", 0, "n", 1, 0, None, 1.0),
        ExitRecord("worker:0", 1, "n", 2, 3, None, 1.0),
        ExitRecord("worker:1", 2, "n", 3, None, 15, 1.0, reason=ExitReason.STOPPED),
    )
    rows = (
        ContainerRow("chief-0", ("chief:0",), "h1", "http://log", 1.25),
        ContainerRow("worker-0", ("worker:0", "worker:1"), "h2", "", 2.0),
        ContainerRow("worker-1", ("worker:2",)),
        ContainerRow("worker-2", ("worker:3",), "h3"),
        ContainerRow("worker-3", ("worker:4",), "h4", "", 7.0),
    )
    replaced = ContainerRow("worker-3", ("worker:5",), "h5", "", 7.0)
    survived = (ExitRecord("worker:4", 5, "n", 6, None, 9, 1.0),)
    ended = HostedOutcome(JobOutcome(exits, initialised=True, survived=survived), (*rows, replaced))
    assert render_table("application_1", ended).splitlines() == [
        "tfcollective: application_1",
        "  task      host  state       duration  exit                   log",
        "  chief:0   h1    succeeded   1.2 s     exited with code 0     http://log",
        "  worker:0  h2    failed      2.0 s     exited with code 3",
        "  worker:1  h2    stopped     2.0 s     was killed by SIGTERM",
        "  worker:2  -     never came",
        "  worker:3  h3    not used",
        "  worker:4  h4    lost        7.0 s     was killed by SIGKILL",
        "  worker:5  h5    lost        7.0 s",
    ]
    assert render_table("a", HostedOutcome(JobOutcome((), initialised=True), ())) == ""
