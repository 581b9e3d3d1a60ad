"""The cluster of these tests, seen through the official client."""

import signal

import pytest
from kubernetes import client, config, watch
from kubernetes_testbed import ApiError

pytestmark = [pytest.mark.kubernetes, pytest.mark.multiprocess]


def job(name="train", count=2, command="echo pod $JOB_COMPLETION_INDEX", **options):
    """An Indexed Job that runs a line of shell in each pod."""
    container = {"name": "main", "image": "example", "command": ["sh", "-c", command]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], "subdomain": name}
    spec = {"completionMode": "Indexed", "completions": count, "parallelism": count, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec | options}


def service(name="train"):
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"batch.kubernetes.io/job-name": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def api(cluster):
    return config.new_client_from_config(str(cluster.kubeconfig))


def test_an_indexed_job_runs_with_readable_logs(cluster, api):
    batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
    batch.create_namespaced_job("default", job())
    assert cluster.wait_for_job("train") == "Complete"
    status = batch.read_namespaced_job_status("train", "default").status
    assert (status.succeeded, status.failed or 0, status.completed_indexes) == (2, 0, "0-1")
    pods = core.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-name=train").items
    assert sorted(core.read_namespaced_pod_log(pod.metadata.name, "default") for pod in pods) == ["pod 0\n", "pod 1\n"]
    assert {pod.status.phase for pod in pods} == {"Succeeded"}


def test_a_pod_sees_only_other_pods_names(cluster, monkeypatch):
    monkeypatch.setenv("OF_THE_CALLER", "1")
    wait = "until getent hosts train-1.train.default.svc.cluster.local; do sleep 0.1; done"
    # A pod that has ended has no name: each stays, so that the other finds it, however late it begins.
    stay = "env | grep CALLER; echo all; exec sleep 600"
    cluster.apply(service(), job(command=f"hostname; cat /etc/hostname; {wait}; id -u; echo $$$$; {stay}"))
    cluster.wait_until(lambda: cluster.merged_log("train-0").endswith("all\n"))
    lines = cluster.merged_log("train-0").splitlines()
    assert lines[:2] == ["train-0", "train-0"]
    assert lines[2].startswith("10.214.")
    assert lines[3:] == ["0", "1", "all"]


def test_a_watch_survives_410_gone(cluster, api):
    core = client.CoreV1Api(api)
    version = core.list_namespaced_pod("default").metadata.resource_version
    cluster.apply(job(count=1))
    phases = []
    for event in watch.Watch().stream(
        core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=60
    ):
        phases.append(event["object"].status.phase)
        if phases[-1] == "Succeeded":
            break
    assert [phase for i, phase in enumerate(phases) if phase not in phases[:i]] == ["Pending", "Running", "Succeeded"]
    cluster.compact()
    with pytest.raises(client.ApiException) as caught:
        next(watch.Watch().stream(core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=5))
    assert caught.value.status == 410


def test_logs_are_followed_to_their_end(cluster, api):
    core = client.CoreV1Api(api)
    cluster.apply(job(count=1, command="for i in 1 2 3; do echo $i; sleep 0.2; done"))
    name = cluster.wait_until(lambda: cluster.pods("train"))[0]["metadata"]["name"]
    response = core.read_namespaced_pod_log(name, "default", follow=True, _preload_content=False)
    assert b"".join(response.stream()) == b"1\n2\n3\n"


def test_a_failed_pod_comes_again_until_the_limit(cluster):
    cluster.apply(job(count=1, command="exit 3", backoffLimit=1))
    assert cluster.wait_for_job("train") == "BackoffLimitExceeded"
    assert cluster.exit_codes("train") == {"train-0": [3, 3]}


def test_the_failure_policy_sees_exit_codes(cluster):
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64]}}]
    cluster.apply(job(count=1, command="exit 64", podFailurePolicy={"rules": rules}))
    assert cluster.wait_for_job("train") == "PodFailurePolicy"


def test_a_deleted_job_takes_its_pods_along(cluster, api):
    cluster.apply(job(count=2, command="trap 'echo asked; exit 0' TERM; echo there; while true; do sleep 0.1; done"))
    cluster.wait_until(lambda: list(cluster.logs().values()) == ["there\n", "there\n"])
    client.BatchV1Api(api).delete_namespaced_job("train", "default", propagation_policy="Foreground")
    cluster.wait_until(lambda: cluster.get("Job", "train") is None)
    assert cluster.list("Pod") == []
    assert list(cluster.logs().values()) == ["there\nasked\n", "there\nasked\n"]


def test_process_1_without_handler_gets_sigkill(cluster):
    cluster.apply(job(count=1, command="exec sleep 600", podReplacementPolicy="Failed", backoffLimit=0))
    pod = cluster.wait_until(lambda: cluster.pods("train"))[0]["metadata"]["name"]
    cluster.delete("Pod", pod, grace_s=1)
    assert cluster.wait_for_job("train") == "BackoffLimitExceeded"


def test_a_policy_may_ignore_evictions(cluster):
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    command = "trap 'exit 1' TERM; until [ -e /again/now ]; do sleep 0.1; done"
    again = cluster.folder / "claim-again"
    again.mkdir()
    body = job(count=1, command=command, backoffLimit=0, podFailurePolicy={"rules": rules})
    spec = body["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "again", "persistentVolumeClaim": {"claimName": "again"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "again", "mountPath": "/again"}]
    cluster.apply(body)
    first = cluster.wait_until(lambda: cluster.pods("train"))[0]["metadata"]["name"]
    cluster.evict(first)
    cluster.wait_until(lambda: [pod for pod in cluster.pods("train") if pod["metadata"]["name"] != first])
    (again / "now").touch()
    assert cluster.wait_for_job("train") == "Complete"


def test_a_job_grows_and_shrinks(cluster, api):
    batch = client.BatchV1Api(api)
    cluster.apply(job(count=1, command="trap 'exit 1' TERM; while true; do sleep 0.1; done"))
    cluster.wait_until(lambda: len(cluster.pods("train")) == 1)
    for count in (3, 2):
        patch = [
            {"op": "replace", "path": f"/spec/{field}", "value": count} for field in ("completions", "parallelism")
        ]
        batch.patch_namespaced_job("train", "default", patch)
        cluster.wait_until(lambda count=count: len(cluster.pods("train")) == count)
    alone = [{"op": "replace", "path": "/spec/completions", "value": 7}]
    with pytest.raises(client.ApiException, match="together"):
        batch.patch_namespaced_job("train", "default", alone)
    assert cluster.get("Job", "train")["status"].get("failed", 0) == 0


def test_a_lost_nodes_pods_return_elsewhere(cluster):
    cluster.apply(job(count=2, command="trap 'exit 1' TERM; while true; do sleep 0.1; done"))
    pods = cluster.wait_until(lambda: len(cluster.pods("train")) == 2 and cluster.pods("train"))
    node = pods[0]["spec"]["nodeName"]
    cluster.lose_node(node)
    cluster.forget_node(node)
    moved = cluster.wait_until(lambda: len(cluster.pods("train")) == 2 and cluster.pods("train"))
    assert node not in {pod["spec"]["nodeName"] for pod in moved}


def test_exit_codes_show_a_kernels_signal(cluster):
    cluster.apply(job(count=1, command="exec sleep 600", backoffLimit=0))
    pod = cluster.wait_until(lambda: cluster.pods("train"))[0]["metadata"]["name"]
    cluster.signal(pod, signal.SIGKILL)
    assert cluster.wait_for_job("train") == "BackoffLimitExceeded"
    assert cluster.exit_codes("train") == {"train-0": [137]}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (job(completons=3), "completons"),
        (job(parallelism="two"), "parallelism"),
        (job(maxFailedIndexes=1), "backoffLimitPerIndex"),
        (job(name="Train"), "metadata.name"),
        (job(podReplacementPolicy="Sometimes"), "podReplacementPolicy"),
    ],
    ids=["unknown field", "mistyped field", "what is missing", "a wrong name", "a wrong value"],
)
def test_what_an_api_server_refuses_is_refused(cluster, wrong, message):
    with pytest.raises(ApiError, match=message):
        cluster.apply(wrong)


def test_without_the_token_there_is_no_answer(cluster):
    configuration = client.Configuration(host=cluster.url)
    configuration.ssl_ca_cert = str(cluster.authority)
    with pytest.raises(client.ApiException) as caught:
        client.CoreV1Api(client.ApiClient(configuration)).list_namespaced_pod("default")
    assert caught.value.status == 401


def test_a_right_that_is_missing_is_named(cluster, api):
    cluster.deny("create", "secrets")
    with pytest.raises(client.ApiException, match="cannot create resource") as caught:
        client.CoreV1Api(api).create_namespaced_secret(
            "default", {"metadata": {"name": "key"}, "stringData": {"key": "1"}}
        )
    assert caught.value.status == 403
