"""The platform's side of a job: who may take part, and what it hears of the submitter. No platform, no agents."""

import os
import platform
import queue
import signal
import threading
from types import SimpleNamespace

import pytest
from patience import within

from tfcollective._version import __version__
from tfcollective.coordinator.auth import new_key
from tfcollective.coordinator.client import CoordinatorClient
from tfcollective.coordinator.server import CoordinatorServer, ServerOptions
from tfcollective.coordinator.store import Entry
from tfcollective.errors import CoordinatorError
from tfcollective.launch.hosted import platform_side, submitter_side
from tfcollective.launch.hosted.messages import STOP
from tfcollective.launch.hosted.submitter_side import HostedClient
from tfcollective.launch.nodes.protocol import orders_key
from tfcollective.tasks import workers


@pytest.fixture
def key():
    return new_key()


@pytest.fixture
def server(key):
    with CoordinatorServer(ServerOptions("job", key, workers(2), 100.0)) as server:
        yield server


@pytest.fixture
def client(server, key):
    with CoordinatorClient(server.endpoint, key) as client:
        yield client


def come(client, token, name):
    facts = {"name": name, "host": "h", "version": __version__, "python": platform.python_version()}
    return client.enroll(token * 32, facts)


class Platform:
    """Is asked once for each round of waiting."""

    asked = 0

    def problem(self, names):
        self.asked += 1

    def describe_missing(self, names):
        return " and ".join(names)

    def explain(self, name):
        return None


def hosted(seconds):
    return SimpleNamespace(plan=SimpleNamespace(hosts=("worker-0", "worker-1")), allocation_timeout=seconds)


def refusal(client, number):
    entry = client.wait(orders_key(number), timeout=within(20))
    return entry.value[0]


def test_a_name_that_comes_twice_is_refused_and_waited_past(client):
    for token in "ab":
        come(client, token, "worker-0")
    asked = Platform()
    nodes, problem = platform_side._gather(hosted(2.5), client, asked, [])
    assert list(nodes) == ["worker-0"]
    assert nodes["worker-0"].facts.number == 0
    assert problem.timed_out
    assert problem.message == "1 of 2 containers came within 2.5 s; missing: worker-1"
    assert asked.asked <= 4  # it waits, and does not spin
    assert "worker-0 has come already" in refusal(client, 1)


def test_strangers_are_refused(client):
    for token, name in (("a", "worker-1"), ("b", "stranger"), ("c", "worker-0")):
        come(client, token, name)
    nodes, problem = platform_side._gather(hosted(60.0), client, Platform(), [])
    assert problem is None
    assert sorted(nodes) == ["worker-0", "worker-1"]
    assert "stranger is none of this job's" in refusal(client, 1)
    assert client.get(orders_key(0)) is None


class Forgetful:
    """A coordinator's client: fails once, then gives one answer after the other; closed after a last failure."""

    def __init__(self, *answers):
        self._answers = [CoordinatorError("one slow answer"), *answers]
        self.closed = False

    def wait(self, key, timeout=0, newer_than=0):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            self.closed = not self._answers
            raise answer
        return answer


@pytest.fixture
def heard(monkeypatch):
    """The signals that it sends to itself."""
    monkeypatch.setattr(platform_side, "_POLL_S", 0.01)
    numbers = []
    monkeypatch.setattr(
        platform_side, "os", SimpleNamespace(getpid=os.getpid, kill=lambda pid, number: numbers.append(number))
    )
    return numbers


def test_the_submitters_signals_come_after_an_answer_that_was_lost(heard):
    both = [signal.SIGINT, signal.SIGTERM]
    client = Forgetful(Entry(both[:1], 1), None, CoordinatorError("another"), Entry(both, 2), CoordinatorError("ended"))
    platform_side._relay_signals(client)
    assert heard == [signal.SIGINT, signal.SIGTERM]


def test_the_submitters_end_is_noticed_after_an_answer_that_was_lost(heard):
    platform_side._keep_lease(Forgetful(Entry(True, 1), CoordinatorError("another"), Entry(True, 2), None))
    assert heard == [signal.SIGHUP]


def test_a_job_that_has_ended_misses_no_submitter(heard):
    client = Forgetful()
    client.closed = True
    platform_side._keep_lease(client)
    platform_side._relay_signals(client)
    assert heard == []


def test_a_signal_that_could_not_be_passed_on_is_passed_on_later(server, client, key, monkeypatch):
    monkeypatch.setattr(submitter_side, "_RETRY_S", 0.01)
    submitter = HostedClient(str(server.endpoint), key)
    put, failures = submitter._client.put, queue.SimpleQueue()
    for _ in range(2):
        failures.put(CoordinatorError("one slow answer"))

    def sometimes(name, value):
        if name == STOP and not failures.empty():
            raise failures.get()
        return put(name, value)

    monkeypatch.setattr(submitter._client, "put", sometimes)
    with submitter:
        submitter.stop(signal.SIGTERM)
        assert client.wait(STOP, timeout=within(20)).value == [signal.SIGTERM]


def test_signals_that_came_earlier_stop_what_begins(monkeypatch):
    """Between the wait for the agents and their beginning a signal may come: it is not lost."""
    from tfcollective.launch.nodes import launcher_side

    told, ended = [], threading.Event()

    class Node:
        lost = False

        def begin(self, job, plan, python):
            told.append("begin")

        def stop(self, number):
            told.append(number)
            ended.set()

        def wait(self):
            assert ended.wait(within(20))

    worker = SimpleNamespace(rank=0)
    plan = SimpleNamespace(hosts=("a",), on=lambda host: (worker,))
    job = SimpleNamespace(failed=False, outcome=lambda received, failure, **more: received)
    assert launcher_side.run_on_nodes(job, plan, {"a": Node()}, "python", (), [signal.SIGTERM]) == [signal.SIGTERM]
    assert told == ["begin", signal.SIGTERM]
