"""Calls of the official client to an API server that answers as a test says, or not at all."""

import json
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from time_limits import within

from tfcollective._base.errors import LaunchError
from tfcollective._base.timing import TIMING

kubernetes = pytest.importorskip("kubernetes")

from tfcollective_launchers.kubernetes import KubernetesLauncher
from tfcollective_launchers.kubernetes.check import RIGHTS
from tfcollective_launchers.kubernetes.cluster import Cluster, ClusterError
from tfcollective_launchers.kubernetes.options import KubernetesOptions

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


class Answers:
    """Answers by method and path, each a code and an object, or a function of the body that gives both; without a code
    the connection ends. What is not there is not found. ``asked`` are the requests that have come."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        self.known = {}
        self.asked = []

    def __call__(self, method, target, body):
        path, _, query = target.partition("?")
        self.asked.append((method, path, query))
        found = self.known.get((method, path), (404, {"kind": "Status", "message": f"{path} not found"}))
        return found(json.loads(body)) if callable(found) else found


@pytest.fixture
def api(monkeypatch, tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, body = answers(self.command, self.path, sent)
            if code is None:
                self.close_connection = True
                return
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers = Answers(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [{"name": "test", "cluster": {"server": answers.url}}],
                    "users": [{"name": "test", "user": {"token": "t"}}],
                }
            )
        )
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield answers
        server.shutdown()


def test_the_launcher_is_deleted_without_its_agents(api):
    api.known = {
        ("GET", f"{JOBS}/train-launcher"): (200, {"metadata": {"name": "train-launcher"}}),
        ("DELETE", f"{JOBS}/train-agents"): (500, {"kind": "Status", "message": "etcd has a bad day"}),
        ("DELETE", f"{JOBS}/train-launcher"): (200, {"kind": "Status"}),
        ("GET", PODS): (200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}),
    }
    KubernetesLauncher().kill("default/train")
    deleted = [path.rpartition("/")[2] for method, path, _ in api.asked if method == "DELETE"]
    assert deleted == ["train-agents", "train-launcher"]


def test_an_undeletable_launcher_is_an_error(api):
    api.known = {
        ("GET", f"{JOBS}/train-launcher"): (200, {"metadata": {"name": "train-launcher"}}),
        ("DELETE", f"{JOBS}/train-launcher"): (403, {"kind": "Status", "message": "not yours"}),
    }
    with pytest.raises(LaunchError, match=r"deleting the Job train-launcher .* not yours"):
        KubernetesLauncher().kill("default/train")


def test_a_change_outlasts_an_api_server_outage(api):
    answers = iter([(None, {}), (503, {"kind": "Status", "message": "not ready"}), (200, {"kind": "Job"})])
    api.known = {("PATCH", f"{JOBS}/train-launcher"): lambda body: next(answers)}
    cluster = Cluster.connect(KubernetesOptions(image="-", namespace="default"))
    cluster.patch_job("train-launcher", [{"op": "remove", "path": "/spec/suspend"}])
    assert len(api.asked) == 3


@pytest.mark.parametrize("hurried", [True, False])
def test_an_absent_api_server_is_an_error(api, hurried):
    api.known = {("DELETE", f"{JOBS}/train-launcher"): (503, {"kind": "Status", "message": "not ready"})}
    configuration = kubernetes.client.Configuration(host=api.url)
    away = 3600 if hurried else 0.1
    cluster = Cluster(configuration, "default", inside=False, timing=replace(TIMING, cluster_away=away))
    with pytest.raises(ClusterError, match=r"deleting the Job train-launcher .* not ready"):
        cluster.delete_job("train-launcher", lambda: hurried)
    assert len(api.asked) == (1 if hurried else 2)


def test_forwarding_a_pods_port_has_a_limit():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}")
        timing = replace(TIMING, connect=0.1, platform_call=0.1)
        cluster = Cluster(configuration, "default", inside=False, timing=timing)
        with pytest.raises(ClusterError, match=r"connecting to the pod train-0: .* no answer within 0.2 s"):
            cluster.open_port("train-0", 29477)
        # What the server says late is closed, and the thread that has waited for it ends.
        asker, _ = silent.accept()
        asker.close()
        for one in threading.enumerate():
            if one.name == "tfc-port-forward":
                one.join(within(30))
                assert not one.is_alive()


# ---- tfcollective check --launcher kubernetes ------------------------------------------------------------------------

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KINDS = {
    "jobs": JOBS,
    "secrets": "/api/v1/namespaces/default/secrets",
    "services": "/api/v1/namespaces/default/services",
}


def look(**platform):
    return list(KubernetesLauncher().check(platform))


def allows_all_but(*denied):
    def review(body):
        wanted = body["spec"]["resourceAttributes"]
        assert wanted["namespace"] == "default"
        assert wanted["group"] == ("batch" if wanted["resource"] == "jobs" else "")
        resource = "/".join(filter(None, (wanted["resource"], wanted["subresource"])))
        return 201, {"status": {"allowed": f"{wanted['verb']} {resource}" not in denied}, "spec": body["spec"]}

    return review


@pytest.fixture
def well(api):
    """A cluster on which all is well."""

    def made(body):
        return 201, {**body, "metadata": {**body["metadata"], "uid": "u"}}

    fields = ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "major", "minor", "platform")
    api.known = {
        ("GET", "/version/"): (200, {**dict.fromkeys(fields, ""), "gitVersion": "v1.37.0"}),
        ("POST", REVIEWS): allows_all_but(),
        **{("POST", path): made for path in KINDS.values()},
    }
    return api


def test_all_that_a_job_needs_is_looked_at(well):
    findings = {one.name: one for one in look(image="example")}
    assert list(findings) == ["client", "cluster", "rights in the namespace default", "objects of a job"]
    assert all(one.ok for one in findings.values()), findings
    assert "Kubernetes v1.37.0, namespace default" in findings["cluster"].detail
    asked = [(path, query) for method, path, query in well.asked if method == "POST"]
    forwarded = 2
    assert asked.count((REVIEWS, "")) == sum(len(verbs) for _, verbs in RIGHTS.values()) + forwarded
    made = [JOBS, KINDS["secrets"], KINDS["services"], JOBS]
    assert asked[-len(made) :] == [(path, "dryRun=All") for path in made]


def test_without_an_image_the_objects_are_not_tried(well):
    last = look()[-1]
    assert last.ok and last.noted
    assert "--image" in last.remedy


def test_a_missing_right_is_named_and_final(well):
    well.known["POST", REVIEWS] = allows_all_but("patch jobs", "create pods/portforward")
    last = look(image="example")[-1]
    assert (last.name, last.ok) == ("rights in the namespace default", False)
    assert last.detail == "not allowed: patch jobs, create pods/portforward"
    well.known["POST", REVIEWS] = allows_all_but("create pods/portforward")
    assert look(image="example", direct=True)[-1].ok


def test_what_the_cluster_would_refuse_is_said(well):
    well.known["POST", JOBS] = (403, {"kind": "Status", "message": "exceeded quota: gpus"})
    last = look(image="example", gpus=8)[-1]
    assert not last.ok
    assert "exceeded quota: gpus" in last.detail


def test_a_cluster_that_does_not_answer_ends_it(api):
    last = look(image="example")[-1]
    assert (last.name, last.ok) == ("cluster", False)
    assert "asking for the version" in last.detail


def test_no_cluster_at_all_ends_it(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    last = look(image="example")[-1]
    assert (last.name, last.ok) == ("cluster", False)
    assert "no cluster was found" in last.detail
