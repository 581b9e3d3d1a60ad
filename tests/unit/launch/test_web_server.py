"""Who may read the page of a job, and what they get."""

import http.client
import json
import sys
import threading
from contextlib import contextmanager

import pytest
from time_limits import within

from tfcollective._base.tasks import workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.web.server import WatchServer

TOKEN = "t" * 32
JOB = JobSnapshot(
    "job-1",
    tuple(TaskView(task, rank, TaskState.RUNNING) for rank, task in enumerate(workers(2))),
    initialised=True,
    generation=1,
    members=workers(2),
)


@pytest.fixture
def server(tmp_path):
    with WatchServer(Endpoint("127.0.0.1", 0), str(tmp_path), TOKEN) as serving:
        yield serving


@contextmanager
def asked(server, path, **headers):
    """The answer to a request, whose connection stays open."""
    connection = http.client.HTTPConnection(server.endpoint.host, server.endpoint.port, timeout=within(20))
    try:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()
    finally:
        connection.close()


def code_of(server, path, **headers):
    with asked(server, path, **headers) as answer:
        return answer.status


def states(answer):
    """The states that a page follows."""
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


@pytest.mark.parametrize("path", ["/", "/x/", "/metrics", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/events", f"/{TOKEN}/x", "//"])
def test_without_the_token_there_is_nothing(server, path):
    assert code_of(server, path) == 404


def test_another_sites_name_is_refused(server):
    path, port = f"/{TOKEN}/", server.endpoint.port
    assert [code_of(server, path, Host=host) for host in (f"evil.example:{port}", "evil.example", "")] == [403] * 3
    ours = (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "[::1]", "10.0.0.7")
    assert [code_of(server, path, Host=host) for host in ours] == [200] * 5


def test_the_page_holds_all_that_it_needs(server):
    with asked(server, f"/{TOKEN}/") as answer:
        text, policy = answer.read().decode(), answer.getheader("Content-Security-Policy")
    assert "{{" not in text.replace("{{}", "")
    assert "//cdn" not in text
    assert "src=" not in text
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert text.count(f'<script nonce="{nonce}">') == text.count("<script")


def test_a_page_follows_the_job_to_its_end(server):
    server.take(JOB)
    with asked(server, f"/{TOKEN}/events") as answer:
        following = states(answer)
        first = next(following)
        assert (first["job"], first["state"], first["ended"], first["log"]) == ("job-1", "healthy", False, [])
        server.end(JobOutcome((), True))
        assert list(following)[-1]["state"] == "complete"


def test_output_of_the_ranks_is_shown(server, tmp_path):
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "stdout").write_bytes(b"one\rtwo\r\n" + b"x" * 3 + b"\xff\n")
    with asked(server, f"/{TOKEN}/events") as answer:
        following = states(answer)
        assert next(following)["log"] == []
        server.read_log()
        server.end(JobOutcome((), True))
        assert list(following)[-1]["log"] == ["[1] two", "[1] xxx\ufffd"]


def test_pages_are_limited(server):
    assert code_of(server, f"/{TOKEN}/") == 200
    opened = [asked(server, f"/{TOKEN}/events") for _ in range(32)]
    try:
        assert [one.__enter__().status for one in opened] == [200] * 32
        assert code_of(server, f"/{TOKEN}/events") == 503
    finally:
        for one in opened:
            one.__exit__(None, None, None)


def test_the_end_waits_for_no_reader(tmp_path):
    """One connection reads nothing."""
    before = set(threading.enumerate())
    with WatchServer(Endpoint("127.0.0.1", 0), None, TOKEN) as server:
        idle = asked(server, f"/{TOKEN}/events")
        idle.__enter__()
        for _ in range(1000):
            server.take(JOB)
        server.end(JobOutcome((), True))
    idle.__exit__(None, None, None)
    server.take(JOB)  # too late, and no error
    assert not set(threading.enumerate()) - before


def test_without_its_library_metrics_say_what_to_install(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with asked(server, f"/{TOKEN}/metrics") as answer:
        assert (answer.status, b"pip install 'tfcollective[web]'" in answer.read()) == (501, True)
