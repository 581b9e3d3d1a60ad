"""The objects that `--launcher kubernetes` makes, and what it refuses; without a cluster."""

import sys

import pytest
from manifests import problems
from tfcollective_launchers.kubernetes import KubernetesLauncher
from tfcollective_launchers.kubernetes.objects import (
    begun,
    check_files,
    described,
    files_of,
    launcher_job,
    owned_objects,
    plan_pods,
)
from tfcollective_launchers.kubernetes.options import KubernetesOptions

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.task_specs import TaskSpec, trainers_of
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.spec import JobSpec

PLATFORM = {"image": "example", "name": "train-1", "key_secret": "train-1-job"}


def job(np=4, **fields):
    return JobSpec(("python", "train.py"), np, **fields)


def wanted(spec=None, **platform):
    return described(spec or job(), KubernetesOptions.of({**PLATFORM, **platform}))


def all_objects(one):
    launcher = launcher_job(one)
    owner = {"metadata": {"name": launcher["metadata"]["name"], "uid": "u"}}
    return [launcher, *owned_objects(one, files_of(b"job", b"k" * 32, b"call"), owner)]


@pytest.mark.parametrize(
    "one",
    [
        wanted(),
        wanted(job(min_proc=2, max_proc=8), gpus=2, procs_per_pod=2),
        wanted(run_as="0", queue="q", active_deadline=7.5, ttl=30, detach=True, volumes=["pvc/a:/a"]),
    ],
)
def test_objects_are_valid_and_have_an_owner(one):
    objects = all_objects(one)
    assert [each["kind"] for each in objects] == ["Job", "Secret", "Service", "Job"]
    for each in objects:
        assert problems(each) == []
    for each in objects[1:]:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Job", "u")


def test_agents_get_the_key_alone():
    launcher, _, _, agents = all_objects(wanted())
    (key,) = (each for each in agents["spec"]["template"]["spec"]["volumes"] if each["name"] == "key")
    assert key["secret"]["items"] == [{"key": "key", "path": "key"}]
    assert "items" not in launcher["spec"]["template"]["spec"]["volumes"][0]["secret"]


def test_an_unfollowed_job_has_a_deadline():
    one = wanted(allocation_timeout=100)
    assert launcher_job(one)["spec"]["activeDeadlineSeconds"] > 100
    place = "/spec/activeDeadlineSeconds"
    assert begun(one) == [{"op": "add", "path": place, "value": 1}, {"op": "remove", "path": place}]
    assert begun(wanted(active_deadline=50))[0]["value"] == 50


def test_the_ranks_are_in_pods_in_their_order():
    plan = plan_pods(wanted(job(5), procs_per_pod=2), {})
    assert [worker.host for worker in plan.workers] == [f"train-1-agents-{number}" for number in (0, 0, 1, 1, 2)]


def test_roles_fill_in_missing_pod_options():
    specs = {"chief": TaskSpec("1 GiB", 1), "worker": TaskSpec("2 GiB", 4, instances=2, gpus=1)}
    tasks = trainers_of(specs)
    options = wanted(job(3, tasks=tasks, task_specs=specs), memory="5Gi").options
    assert (options.cpus, options.memory, options.gpus) == ("4", "5Gi", 1)


def test_a_function_that_is_too_large_is_refused():
    with pytest.raises(ConfigError, match="2048 KiB of which are the pickled function"):
        check_files(files_of(b"", b"k", bytes(2 << 20)))


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"hosts": (Host("a", 4),)}, ConfigError, "Kubernetes chooses the hosts"),
        ({"emit_tf_config": True}, UnsupportedError, "TF_CONFIG"),
        ({"blacklist": ("a",)}, UnsupportedError, "blacklist"),
        ({"max_restarts": 1, "platform": {**PLATFORM, "detach": True}}, ConfigError, "detach"),
        ({"platform": {}}, ConfigError, "--image"),
        ({"platform": {**PLATFORM, "name": "a" * 55}}, ConfigError, "choose a name of at most 54"),
    ],
)
def test_what_cannot_run_is_refused(fields, error, said):
    with pytest.raises(error, match=said):
        KubernetesLauncher().plan(job(**{"platform": PLATFORM, **fields}))


def test_without_its_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ConfigError, match=r"pip install 'tfcollective\[kubernetes\]'"):
        KubernetesLauncher().run(job(platform=PLATFORM))


def test_a_missing_cluster_gives_advice(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    pytest.importorskip("kubernetes")
    with pytest.raises(ConfigError, match="no cluster was found: give --kubeconfig"):
        KubernetesLauncher().run(job(platform=PLATFORM))


def test_its_jobs_have_a_namespace_and_a_name():
    launcher = KubernetesLauncher()
    assert launcher.owns("default/train-1a2b3c")
    assert not launcher.owns("application_1_1")
    assert not launcher.owns("4711")
