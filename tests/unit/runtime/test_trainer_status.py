"""The progress that Kubeflow's Trainer hears of: as its own client posts it, over TLS, to a server that is here."""

import datetime
import http.client
import http.server
import json
import os
import queue
import subprocess
import sys
import threading

import pytest
from self_signed import self_signed
from time_limits import within

from tfcollective._runtime.trainer_status import TrainerStatus


@pytest.fixture
def server(tmp_path):
    """Its variables, and the requests that it has got."""
    authority, context = self_signed(tmp_path)
    (tmp_path / "token").write_text("secret-token\n")
    got = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.put((self.path, self.headers["Authorization"], body))
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self):
            got.put((self.path, self.headers["Authorization"], None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.socket = context.wrap_socket(served.socket, server_side=True)
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield (
            {
                "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{served.server_port}/status/train",
                "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(authority),
                "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / "token"),
            },
            got,
        )
        served.shutdown()


def test_progress_is_posted(server):
    environ, got = server
    status = TrainerStatus.of(environ)
    status.report({"step": 30, "steps": 120, "steps_per_second": 2.0, "change": {"connect": 1.0}, "loss": 0.5})
    path, authorization, body = got.get(timeout=within(30))
    status.close()
    assert (path, authorization) == ("/status/train", "Bearer secret-token")
    said = body["trainerStatus"]
    assert datetime.datetime.fromisoformat(said.pop("lastUpdatedTime")).tzinfo is not None
    numbers = {"step": "30", "steps": "120", "steps_per_second": "2.0", "loss": "0.5"}
    metrics = [{"name": name, "value": value} for name, value in numbers.items()]
    assert said == {"progressPercentage": 25, "estimatedRemainingSeconds": 45, "metrics": metrics}


def test_a_rank_posts_what_it_publishes(server):
    environ, got = server
    program = "import tfcollective as t; t.init(); t.publish({'step': 7}); t.shutdown()"
    subprocess.run([sys.executable, "-c", program], env=os.environ | environ, check=True, timeout=within(60))
    assert got.get(timeout=within(30))[2]["trainerStatus"]["metrics"] == [{"name": "step", "value": "7"}]


def test_the_last_word_is_posted_at_the_end(server):
    environ, got = server
    status = TrainerStatus.of(environ)
    status.report({"step": 1})
    got.get(timeout=within(30))
    status.report({"step": 2})  # sooner than the interval
    status.close()
    assert got.get(timeout=within(30))[2]["trainerStatus"]["metrics"] == [{"name": "step", "value": "2"}]


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), http.client.BadStatusLine("refused")])
def test_a_missing_server_costs_one_warning(tmp_path, caplog, error):
    (tmp_path / "token").write_text("secret-token")

    def refuse(*_):
        raise error

    status = TrainerStatus("https://h", None, str(tmp_path / "token"), refuse, interval=0.0)
    for step in range(5):
        status.report({"step": step})
    status.close()
    assert caplog.text.count("does not hear of the progress: refused") == 1
    assert "secret-token" not in caplog.text


def test_the_token_does_not_follow_a_redirect(server, caplog):
    environ, got = server
    url = environ["KUBEFLOW_TRAINER_SERVER_URL"].replace("/status/train", "/moved")
    status = TrainerStatus.of(environ | {"KUBEFLOW_TRAINER_SERVER_URL": url})
    status.report({"step": 1})
    status.close()
    assert [got.get_nowait()[0] for _ in range(got.qsize())] == ["/moved"]
    assert "does not hear of the progress: HTTP Error 302" in caplog.text


def test_the_token_goes_over_https_only(server, caplog):
    environ, _ = server
    assert TrainerStatus.of({}) is None
    assert TrainerStatus.of(environ | {"KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:1"}) is None
    assert "only sent over https" in caplog.text
