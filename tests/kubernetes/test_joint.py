"""Joint jobs: every pod of an Indexed Job is a rank, and they meet by themselves."""

import signal
import time

import pytest
from kubernetes_manifests import joint, secret, service

pytestmark = [pytest.mark.kubernetes, pytest.mark.multiprocess]
AS_A_USER = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}


def said(cluster, text):
    """How many pods have written it, gone or not."""
    return sum(text in log for log in cluster.logs("train-").values())


def with_key_file(manifest, mode):
    """The same job with the key as a file of the Secret in place of a variable."""
    spec = manifest["spec"]["template"]["spec"]
    spec["securityContext"] = dict(AS_A_USER)
    spec["volumes"].append({"name": "key", "secret": {"secretName": "train-key", "defaultMode": mode}})
    spec["containers"][0]["volumeMounts"].append({"name": "key", "mountPath": "/mnt/key"})
    spec["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return manifest


def test_ranks_meet_with_a_key_by_environment(cluster):
    cluster.apply(secret(), service(), joint())
    assert cluster.wait_for_job("train") == "Complete"
    assert said(cluster, "of 2 sum 3.0 local size 1 uid 0") == 2


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_ranks_meet_with_an_fsgroup_key_file(cluster, mode):
    manifest = with_key_file(joint(key=[("TFCOLLECTIVE_KEY_FILE", "/mnt/key/key")]), mode)
    cluster.apply(secret(), service(), manifest)
    assert cluster.wait_for_job("train") == "Complete"
    assert said(cluster, "of 2 sum 3.0 local size 1 uid 1000") == 2


def test_a_failing_rank_restarts_all_ranks(cluster):
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64, 70]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}},
    ]
    options = {"backoffLimit": 1, "podFailurePolicy": {"rules": rules}}
    cluster.apply(secret(), service(), joint(env=[("CRASH_ONCE", "/shared"), ("STEPS", "20")], **options))
    assert cluster.wait_for_job("train") == "Complete"  # the lost peer, 75, did not count
    assert cluster.exit_codes("train") == {"train-0": [75, 0], "train-1": [3, 0]}
    assert said(cluster, "done") == 2


def test_a_wrong_configuration_fails_the_job_at_once(cluster):
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64]}}]
    cluster.apply(secret(), service(), joint(key=[], podFailurePolicy={"rules": rules}))
    assert cluster.wait_for_job("train") == "PodFailurePolicy"
    assert 64 in {code for codes in cluster.exit_codes("train").values() for code in codes}
    assert said(cluster, "ConfigError") > 0


@pytest.mark.parametrize(("handler", "code"), [("", 143), ("1", 7)], ids=["ours", "the program's"])
def test_sigterm_ends_process_1_in_order(cluster, handler, code):
    cluster.apply(secret(), service(), joint(env=[("STEPS", "100000"), ("HANDLES_SIGTERM", handler)], backoffLimit=0))
    cluster.wait_until(lambda: said(cluster, "of 2 sum") == 2)
    cluster.evict(cluster.pods("train")[0]["metadata"]["name"])
    assert cluster.wait_for_job("train") == "BackoffLimitExceeded"
    codes = cluster.container_ends("train-")
    assert codes["train-0"] == [code]
    assert codes["train-1"][0] in (75, code)  # the Job may have ended it before it saw that rank 0 was gone


def test_sigterm_ends_a_rank_in_a_collective(cluster):
    cluster.apply(secret(), service(), joint(env=[("STEPS", "100000")], backoffLimit=0))
    cluster.wait_until(lambda: said(cluster, "of 2 sum") == 2)
    waits, stopped = (pod["metadata"]["name"] for pod in cluster.pods("train"))
    cluster.signal(stopped, signal.SIGSTOP)
    time.sleep(1)  # until the other one waits; it ends alike where it does not yet
    cluster.evict(waits)
    cluster.wait_until(lambda: "train-0" in cluster.container_ends())
    cluster.signal(stopped, signal.SIGCONT)
    assert cluster.container_ends()["train-0"] == [143]
    assert cluster.wait_for_job("train") == "BackoffLimitExceeded"


def test_a_deleted_job_ends_before_its_grace(cluster):
    cluster.apply(secret(), service(), joint(env=[("STEPS", "100000")]))
    cluster.wait_until(lambda: said(cluster, "of 2 sum") == 2)
    cluster.delete("Job", "train", propagation="Foreground")
    cluster.wait_until(lambda: cluster.get("Job", "train") is None)
    assert {code for codes in cluster.container_ends("train-").values() for code in codes} <= {143, 75}  # none 137


def test_sigterm_ends_a_rank_awaiting_others(cluster):
    cluster.apply(secret(), service(), joint(2, parallelism=1))  # rank 1 is never there
    cluster.wait_until(lambda: cluster.pods("train"))
    name = cluster.pods("train")[0]["metadata"]["name"]
    cluster.wait_until(lambda: cluster.process_handles_sigterm(name))
    cluster.delete("Job", "train", propagation="Foreground")
    cluster.wait_until(lambda: cluster.get("Job", "train") is None)
    assert cluster.container_ends("train-") == {"train-0": [143]}


def test_env_in_a_pod_says_what_is_understood(cluster):
    manifest = joint(count=2)
    for container in manifest["spec"]["template"]["spec"]["containers"]:
        container["command"] = ["tfcollective", "env"]
    cluster.apply(secret(), service(), manifest)
    assert cluster.wait_for_job("train") == "Complete"
    assert said(cluster, "kubernetes") == 2
    assert said(cluster, "train-0.train:29477") == 2


def test_ranks_meet_by_what_trainers_jax_policy_writes(cluster):
    manifest = joint()
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container["env"] = [
        *(one for one in container["env"] if one["name"] not in ("TFCOLLECTIVE_SIZE", "TFCOLLECTIVE_RENDEZVOUS")),
        {"name": "JAX_NUM_PROCESSES", "value": "2"},
        {"name": "JAX_PROCESS_ID", "valueFrom": index},
        {"name": "JAX_COORDINATOR_ADDRESS", "value": "train-0.train:29500"},
    ]
    cluster.apply(secret(), service(), manifest)
    assert cluster.wait_for_job("train") == "Complete"
    assert said(cluster, "of 2 sum 3.0") == 2
