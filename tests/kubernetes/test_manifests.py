"""What `tfcollective manifest` prints runs: Kubernetes' own kinds, on pods that are processes."""

import secrets

import pytest
import yaml
from growing import WORKER
from kubernetes import client, config
from kubernetes_testbed import this_python
from launching import JOIN, until
from time_limits import within

from tfcollective._cli.app import invoke

pytestmark = [pytest.mark.kubernetes, pytest.mark.multiprocess]
IMAGE = ("--image", "example", "--job-name", "train", "--shm", "64Mi")
KEY = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "train-key"},
    "stringData": {"key": secrets.token_hex(32)},
}


@pytest.fixture
def manifest(capfd):
    def made(*arguments):
        assert invoke("tfcollective", ["manifest", *IMAGE, *arguments]) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    return made


def test_a_fixed_job_trains_as_user_1000(cluster, manifest):
    cluster.apply(manifest("-np", "2", "--", "python", "/app/ranks.py"), KEY)
    assert cluster.wait_for_job("train", 120) == "Complete"
    said = "".join(cluster.logs("train").values())
    assert "rank 0 of 2 sum 3.0 local size 1" in said
    assert said.count("done") == 2


def test_fixed_ranks_meet_again_after_a_crash(cluster, manifest, tmp_path):
    (tmp_path / "claim-shared").symlink_to(tmp_path)
    crash = (
        "--env",
        f"CRASH_ONCE={tmp_path}",
        "--env",
        "STEPS=20",
        "--volume",
        f"pvc/shared:{tmp_path}",
        "--run-as",
        "0",
    )
    cluster.apply(manifest("-np", "2", *crash, "--", "python", "/app/ranks.py"), KEY)
    assert cluster.wait_for_job("train", 120) == "Complete"
    assert (tmp_path / "crashed").exists()
    assert [codes for codes in cluster.exit_codes("train").values() if 3 in codes]


def test_agents_run_several_ranks_in_each_pod(cluster, manifest):
    program = f"{JOIN}\nc = join(); print('I am', rank, 'of', me.world_size, flush=True); c.call(Leave(me.task))"
    cluster.apply(manifest("-np", "4", "--procs-per-pod", "2", "--", "python", "-c", program), KEY)
    assert cluster.wait_for_job("train-launcher", 120) == "Complete"
    assert cluster.wait_for_job("train-agents", 120) == "Complete"
    said = "".join(cluster.logs("train-agents").values())
    assert all(f"[{rank}]<stdout>: I am {rank} of 4" in said for rank in range(4))


def said(cluster, text):
    return sum(log.count(text) for log in cluster.logs("train").values())


def test_a_queued_job_is_suspended_without_failures(cluster, manifest):
    """What Kueue does is to change the field ``suspend``."""
    api = client.BatchV1Api(config.new_client_from_config(str(cluster.kubeconfig)))

    def suspend(value):
        api.patch_namespaced_job("train", "default", [{"op": "replace", "path": "/spec/suspend", "value": value}])

    cluster.apply(manifest("-np", "2", "--queue", "q", "--env", "STEPS=100", "--", "python", "/app/ranks.py"), KEY)
    cluster.wait_until(lambda: cluster.get("Job", "train")["status"].get("conditions"))
    assert cluster.list("Pod") == []
    suspend(False)
    cluster.wait_until(lambda: said(cluster, "of 2 sum 3.0") == 2)
    suspend(True)
    cluster.wait_until(lambda: not cluster.pods("train", running=False))
    assert cluster.get("Job", "train")["status"].get("failed", 0) == 0
    suspend(False)
    assert cluster.wait_for_job("train", 120) == "Complete"
    assert said(cluster, "done") == 2
    assert {code for codes in cluster.container_ends("train").values() for code in codes} <= {0, 75, 143}


def test_an_overlong_job_ends_and_stays_briefly(cluster, manifest):
    limits = ("--active-deadline", f"{within(15):.0f}", "--ttl", f"{within(5):.0f}")
    cluster.apply(manifest("-np", "2", *limits, "--env", "STEPS=100000", "--", "python", "/app/ranks.py"), KEY)
    assert cluster.wait_for_job("train", 120) == "DeadlineExceeded"
    assert said(cluster, "of 2 sum 3.0") == 2
    assert {code for codes in cluster.container_ends("train").values() for code in codes} <= {75, 143}
    cluster.wait_until(lambda: cluster.get("Job", "train") is None)


def test_a_wrong_key_ends_launcher_and_agents(cluster, manifest):
    wrong = {**KEY, "stringData": {"key": "none"}}
    cluster.apply(manifest("-np", "4", "--procs-per-pod", "2", "--", "python", "/app/ranks.py"), wrong)
    assert cluster.wait_for_job("train-launcher") == "PodFailurePolicy"
    assert cluster.wait_for_job("train-agents") == "MaxFailedIndexesExceeded"
    ends = cluster.container_ends("train")
    assert ends["launcher"] == [64]
    assert [64] in (ends.get(f"train-agents-{number}") for number in range(2))


@pytest.mark.kill
def test_an_elastic_job_replaces_lost_pods(make_cluster, manifest, tmp_path):
    folder = WORKER.parent
    image = this_python()
    image.folders[str(folder)] = folder
    cluster = make_cluster(image=image)
    (tmp_path / "claim-shared").symlink_to(tmp_path)
    shared = ("--volume", f"pvc/shared:{tmp_path}", "--run-as", "0")
    text = manifest("-np", "2", "--min-np", "1", *shared, "--", "python", str(WORKER), str(tmp_path))
    cluster.apply(text, KEY)
    assert len(list(yaml.safe_load_all(text))) == 3

    def world_is(size):
        path = tmp_path / "worlds"
        worlds = path.read_text().splitlines() if path.exists() else []
        return bool(worlds) and len(worlds[-1].split()) == size

    until(lambda: world_is(2), 120)
    cluster.signal(cluster.pods("train-agents")[1]["metadata"]["name"])
    until(lambda: world_is(1), 120)
    until(lambda: world_is(2), 120)
    (tmp_path / "finish").touch()
    assert cluster.wait_for_job("train-launcher", 120) == "Complete"
