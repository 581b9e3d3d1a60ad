"""`tfcollective run --launcher kubernetes`, with the official client, on a served API whose pods are processes."""

import re
import uuid
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
from growing import WORKER, Growing
from kubernetes_testbed import this_python
from launching import JOIN, Run, environment_of, until, words_of
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.kubernetes, pytest.mark.multiprocess]
PODS = "tfcollective_launchers.kubernetes.pods"
HELLO = f"{JOIN}\nc = join(); print('I am', rank, 'of', me.world_size, flush=True); c.call(Leave(me.task))"


def shared_folder(folder):
    """The options that mount this folder at its own path in all pods of a cluster that is opened in it."""
    (folder / "claim-shared").symlink_to(folder)
    return ("--volume", f"pvc/shared:{folder}", "--run-as", "0")


def options_of(cluster, *more):
    access = ("--launcher", "kubernetes", "--kubeconfig", str(cluster.kubeconfig), "--direct")
    return (*access, "--image", "example", "--job-name", "train", "--shm", "64Mi", *more)


def ended(pod):
    return pod["status"].get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]


def leaves_nothing(cluster):
    for kind in ("Job", "Pod", "Secret", "Service"):
        until(lambda kind=kind: not cluster.list(kind), 60, lambda kind=kind: f"still there: {cluster.list(kind)}")


class InPods(Platform):
    """Two agents in pods, which are no children of the launcher."""

    seconds = 120.0
    silence = 90.0  # the launcher's pod waits for its submitter, and the agents for the launcher

    def __init__(self, cluster, folder):
        self.mark = uuid.uuid4().hex
        self.arguments = (
            *options_of(cluster, *shared_folder(folder), "--ttl", "5"),
            *("-np", "2", "--env", f"TFC_TEST_POD={self.mark}"),
        )

    def agents(self, job):
        return [one.parent() for one in self.ranks(job) if one.parent() is not None and PODS in words_of(one.parent())]

    def ranks(self, job):
        return [
            one
            for one in psutil.process_iter()
            if environment_of(one).get("TFC_TEST_POD") == self.mark and "TFCOLLECTIVE_TASK" in environment_of(one)
        ]


class TestContract(ProviderContract):
    @pytest.fixture
    def platform(self, cluster, tmp_path, has_failed):
        yield InPods(cluster, tmp_path)
        if not has_failed():
            leaves_nothing(cluster)


def test_a_job_runs_and_leaves_nothing(cluster):
    with Run((*options_of(cluster), "-np", "2", "python", "-c", HELLO)) as job:
        code, out, err = job.finish(120.0)
    assert code == 0, (err, cluster.logs())
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>: I am {rank} of 2" for rank in range(2)]
    leaves_nothing(cluster)


def test_ranks_in_a_pod_share_one_node(cluster):
    program = f"{JOIN}\nc = join(); import socket; print(socket.gethostname(), flush=True); c.call(Leave(me.task))"
    with Run((*options_of(cluster), "-np", "3", "--procs-per-pod", "2", "python", "-c", program)) as job:
        code, out, err = job.finish(120.0)
    assert code == 0, err
    hosts = sorted(line.partition(": ")[2].rpartition("-")[2] for line in out.splitlines())
    assert hosts == ["0", "0", "1"]


def returned(number, name):
    import tfcollective

    tfcollective.init()
    return number * 2, tfcollective.rank(), name


def test_a_function_returns_its_results(cluster):
    import tfcollective

    platform = {"image": "example", "kubeconfig": str(cluster.kubeconfig), "direct": True, "shm": "64Mi"}
    results = tfcollective.run(
        returned, args=(21,), kwargs={"name": "x"}, np=2, launcher="kubernetes", platform=platform
    )
    assert list(results) == [(42, 0, "x"), (42, 1, "x")]
    leaves_nothing(cluster)


def test_an_image_that_cannot_be_pulled_fails(make_cluster):
    cluster = make_cluster(image=replace(this_python(), missing={"example"}))
    with Run((*options_of(cluster), "-np", "2", "--allocation-timeout", "8", "python", "-c", HELLO)) as job:
        code, _, err = job.finish(120.0)
    assert code == 69
    assert "ImagePull" in err
    leaves_nothing(cluster)


def test_a_cluster_without_room_says_so(make_cluster):
    cluster = make_cluster(nodes={"node-1": {"pods": "110", "cpu": "1"}})
    more = ("--cpus", "64", "--allocation-timeout", "8")
    with Run((*options_of(cluster), "-np", "2", *more, "python", "-c", HELLO)) as job:
        code, _, err = job.finish(120.0)
    assert code == 69, err
    assert "of 2 pods came within 8 s" in err
    assert "nsufficient cpu" in err
    leaves_nothing(cluster)


def test_what_the_user_may_not_do_is_named(cluster):
    cluster.deny("create", "secrets")
    with Run((*options_of(cluster), "-np", "2", "python", "-c", HELLO)) as job:
        code, _, err = job.finish(120.0)
    assert code == 70
    assert "creating the Secret" in err
    assert "cannot create resource" in err
    leaves_nothing(cluster)


def test_an_api_servers_outage_disturbs_no_job(cluster, tmp_path):
    here = str(tmp_path)
    program = (
        f"{JOIN}\nc = join(); open({here!r} + f'/here-{{rank}}', 'w').close()\n"
        f"while not os.path.exists({here!r} + '/go'): time.sleep(0.1)\nc.call(Leave(me.task))\n"
        f"open({here!r} + f'/left-{{rank}}', 'w').close()"
    )
    with Run((*options_of(cluster, *shared_folder(tmp_path)), "-np", "2", "python", "-c", program)) as job:
        until(lambda: len(list(tmp_path.glob("here-*"))) == 2, 120)
        cluster.compact()
        cluster.interrupt()
        with cluster.away():
            (tmp_path / "go").touch()
            until(lambda: len(list(tmp_path.glob("left-*"))) == 2, 60)
        code, _, err = job.finish(120.0)
    assert code == 0, err
    leaves_nothing(cluster)


def test_a_detached_job_is_found_and_killed(cluster, monkeypatch, capfd):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    program = f"{JOIN}\njoin(); print('here', flush=True); time.sleep(600)"
    with Run((*options_of(cluster), "-np", "2", "--detach", "python", "-c", program)) as job:
        code, _, err = job.finish(120.0)
    assert code == 0, err
    name = err.rpartition(" ")[2].strip()
    assert name.startswith("default/train-")
    from tfcollective._cli.app import invoke

    until(lambda: sum("here" in text for text in cluster.logs("train").values()) == 2, 60)
    assert invoke("tfcollective", ["logs", name]) == 0
    assert capfd.readouterr().out.count(": here") == 2
    assert invoke("tfcollective", ["status", name]) == 0
    said = capfd.readouterr().out
    assert f"job: {name}" in said
    assert "worker:1" in said
    assert said.count("running, on node-") == 3
    assert invoke("tfcollective", ["kill", name]) == 0
    leaves_nothing(cluster)


class GrowingInPods(Growing):
    """An elastic job in pods."""

    def __init__(self, cluster, folder):
        super().__init__(folder)
        self.cluster = cluster

    @contextmanager
    def runs_with(self, *options):
        options = (*options_of(self.cluster, *shared_folder(self.directory)), *options)
        with self.runs(*options) as job:
            yield job
        leaves_nothing(self.cluster)  # not after a failure: what is left then goes when its time is over

    def pod_of(self, number):
        """The name of the pod of agents with this index that runs."""
        (pod,) = (
            one["metadata"]["name"]
            for one in self.cluster.list("Pod", "app.kubernetes.io/component=agents")
            if one["spec"]["hostname"].endswith(f"-agents-{number}")
            and one["status"].get("phase") == "Running"
            and "deletionTimestamp" not in one["metadata"]
        )
        return pod

    def node_of_agents(self):
        """The node that has an agent and not the launcher: the scheduler puts the first agent on the emptier one."""
        nodes = {True: set(), False: set()}
        for one in self.cluster.list("Pod"):
            nodes[one["spec"]["hostname"] == "launcher"].add(one["spec"]["nodeName"])
        (node,) = nodes[False] - nodes[True]
        return node


@pytest.fixture
def growing(make_cluster, tmp_path):
    folder = WORKER.parent
    image = this_python()
    cluster = make_cluster(image=replace(image, folders={str(folder): folder}))
    return GrowingInPods(cluster, tmp_path)


@pytest.mark.kill
def test_a_killed_pod_returns_and_joins(growing):
    with growing.runs_with("-np", "2", "--min-np", "1"):
        growing.comes_to(2)
        growing.cluster.signal(growing.pod_of(1))
        growing.comes_to(1)
        growing.comes_to(2)
        err, _ = growing.ends()
    assert "exit code 137" in err


def test_drained_pods_leave_and_are_replaced(growing):
    with growing.runs_with("-np", "2", "--min-np", "1"):
        growing.comes_to(2)
        node = growing.node_of_agents()
        growing.cluster.drain(node)
        growing.comes_to(1)
        growing.comes_to(2)
        assert node not in {one["spec"]["nodeName"] for one in growing.cluster.list("Pod") if not ended(one)}
        err, _ = growing.ends()
    assert "is asked to end" in err
    assert re.search(r"worker:\d leaves the job gracefully", err)


def test_a_job_grows_when_the_cluster_has_room(make_cluster, tmp_path):
    folder = WORKER.parent
    image = replace(this_python(), folders={str(folder): folder})
    cluster = make_cluster(image=image, nodes={"node-1": {"pods": "2"}})
    growing = GrowingInPods(cluster, tmp_path)
    with growing.runs_with("-np", "1", "--min-np", "1", "--max-np", "2"):
        growing.comes_to(1)
        cluster.add_node("node-2")
        growing.comes_to(2)
        growing.ends()


@pytest.mark.kill
@pytest.mark.parametrize("then", ["forget_node", "recover_node"])
def test_a_node_that_is_lost_is_outlasted(growing, then):
    with growing.runs_with("-np", "2", "--min-np", "1", "--op-timeout", "20"):
        growing.comes_to(2)
        node = growing.node_of_agents()
        growing.cluster.lose_node(node)
        growing.comes_to(1)
        getattr(growing.cluster, then)(node)
        growing.comes_to(2)
        growing.ends()


def test_connections_may_lead_through_the_api_server(cluster):
    options = [one for one in options_of(cluster) if one != "--direct"]
    with Run((*options, "-np", "2", "python", "-c", HELLO)) as job:
        code, out, err = job.finish(120.0)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>: I am {rank} of 2" for rank in range(2)]
    leaves_nothing(cluster)


def test_an_evaluator_runs_in_the_first_pod(cluster):
    program = f"""import os, socket
print(os.environ["TFCOLLECTIVE_TASK"], "in", socket.gethostname()[-1], flush=True)
if not os.environ["TFCOLLECTIVE_TASK"].startswith("evaluator"):
    exec({JOIN!r} + "\\nc = join(); c.call(Leave(me.task))")
"""
    roles = ("--task-spec", "worker:instances=2,memory=128MiB,vcores=1", "--task-spec", "evaluator")
    with Run((*options_of(cluster), *roles, "python", "-c", program)) as job:
        code, out, err = job.finish(120.0)
    assert code == 0, err
    said = sorted(line.partition(": ")[2] for line in out.splitlines())
    assert said == ["evaluator:0 in 0", "worker:0 in 0", "worker:1 in 1"]


def test_a_job_that_fails_is_made_again(cluster, tmp_path):
    crashed = str(tmp_path / "crashed")
    program = (
        f"{JOIN}\nc = join()\nif os.path.exists({crashed!r}): c.call(Leave(me.task)); sys.exit(0)\n"
        f"wait_until(2, 'running')\nif rank == 1: open({crashed!r}, 'w').close(); sys.exit(5)\ntime.sleep(600)"
    )
    more = (*shared_folder(tmp_path), "--max-restarts", "1")
    with Run((*options_of(cluster, *more), "-np", "2", "python", "-c", program)) as job:
        code, _, err = job.finish(180.0)
    assert code == 0, err
    assert err.count("2 pods of example are requested") == 2
    leaves_nothing(cluster)
