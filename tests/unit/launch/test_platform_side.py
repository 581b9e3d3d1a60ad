"""The platform's side of a hosted job, and its exchange with the submitter; without a platform and agents."""

import contextlib
import io
import os
import queue
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from time_limits import within

from tfcollective._base.codec import encode
from tfcollective._base.errors import CoordinatorError, LaunchError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import workers
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Entry, Found, Presence
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.store_keys import item_key
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch.hosted import output_relay, platform_side
from tfcollective._launch.hosted.messages import DONE, OUTCOME, STOP, SUBMITTER, HostedJob, HostedOutcome
from tfcollective._launch.hosted.platform_side import started_again
from tfcollective._launch.hosted.submitter_side import HostedClient, LauncherLostError
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.planner import plan_local
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.system.signals import forward_signals


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

    def call(self, request):
        entry = self.wait(request.key)
        return Found(entry, silent=entry is None)


@pytest.fixture
def heard():
    """The signals that it sends to itself."""
    with forward_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number: None) as numbers:
        yield numbers


def test_signals_arrive_after_a_lost_answer(heard):
    first, second = Entry(signal.SIGINT, 1), Entry(signal.SIGTERM, 1)
    client = Forgetful(first, None, CoordinatorError("another"), second, CoordinatorError("ended"))
    platform_side._relay_signals(client)
    assert heard == [signal.SIGINT, signal.SIGTERM]


def test_a_submitters_end_survives_a_lost_answer(heard):
    platform_side._watch_submitter(Forgetful(CoordinatorError("another"), None))
    assert heard == [signal.SIGHUP]


def test_an_informed_submitter_may_leave(heard):
    platform_side._watch_submitter(Forgetful(Entry(True, 1)))
    assert heard == []


def test_a_job_that_has_ended_misses_no_submitter(heard):
    client = Forgetful()
    client.closed = True
    platform_side._watch_submitter(client)
    platform_side._relay_signals(client)
    assert heard == []


def losing(times, name):
    """A class of clients that lose so many answers to what is put or asked for under this name."""
    failures = queue.SimpleQueue()
    for _ in range(times):
        failures.put(CoordinatorError("one slow answer"))

    def lose(asked):
        if asked == name and not failures.empty():
            raise failures.get()

    class Losing(CoordinatorClient):
        def put(self, key, value):
            lose(key.partition("/0")[0])
            return super().put(key, value)

        def get_blob(self, name, *, timeout):
            lose(name)
            return super().get_blob(name, timeout=timeout)

    return Losing


def test_an_undelivered_signal_is_passed_on_later(server, client, key):
    with HostedClient(str(server.endpoint), key, client=losing(2, STOP)) as submitter:
        submitter.stop(signal.SIGTERM)
        assert client.wait(item_key(STOP, 0), timeout=within(20)).value == signal.SIGTERM


# ---- the end ---------------------------------------------------------------------------------------------------------

PLAN = SimpleNamespace(tasks=workers(2))
WELL = HostedOutcome(JobOutcome((), initialised=True), ())


@pytest.fixture
def follower(server, key):
    """Makes one that follows the job, with other limits."""
    with contextlib.ExitStack() as opened:

        def make(client=CoordinatorClient, **limits):
            timing = replace(TIMING, last_output=0.1, **limits)
            return opened.enter_context(HostedClient(str(server.endpoint), key, timing, client))

        yield make


@pytest.fixture
def submitter(follower):
    return follower()


def test_results_are_fetched_although_answers_get_lost(client, follower):
    submitter = follower(losing(3, "result/worker:1"))
    for task in PLAN.tasks:
        client.put_blob(f"result/{task}", str(task).encode())
    report = threading.Thread(
        target=platform_side._tell, args=(Channel(client), WELL), kwargs={"followed": True}, daemon=True
    )
    report.start()
    ended = submitter.follow(PLAN, lambda: None, (), results=True)
    assert ended.outcome.results == {"worker:0": b"worker:0", "worker:1": b"worker:1"}
    report.join(within(20))
    assert not report.is_alive()


def test_ctrl_c_ends_the_fetching_of_results(client, follower):
    class Interrupted(CoordinatorClient):
        def get_blob(self, name, *, timeout):
            if not name.startswith("result/"):
                return super().get_blob(name, timeout=timeout)
            os.kill(os.getpid(), signal.SIGTERM)
            raise CoordinatorError("one slow answer")

    submitter = follower(Interrupted)
    client.put_blob(OUTCOME, encode(WELL))
    outcome = submitter.follow(PLAN, lambda: None, (signal.SIGTERM,), results=True).outcome
    assert (outcome.stopped_by, outcome.results) == (signal.SIGTERM, {})


def test_unprintable_output_ends_nothing():
    letters = io.BytesIO()
    terminal = io.TextIOWrapper(letters, "latin-1")
    output_relay._show(terminal, "\N{CHECK MARK} done\n")
    assert letters.getvalue() == b"? done\n"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as unread:
        output_relay._show(unread, "done\n")
        with contextlib.suppress(OSError):
            unread.close()


def test_results_that_cannot_be_fetched_are_missed(client, follower):
    submitter = follower(losing(1000, "result/worker:0"), retry_for=0.0)
    client.put_blob(OUTCOME, encode(WELL))
    with pytest.raises(LaunchError, match="ended well, but its results could not be fetched: one slow answer"):
        submitter.follow(PLAN, lambda: None, (), results=True)


def test_a_failed_jobs_results_are_not_fetched(client, follower):
    submitter = follower(losing(1000, "result/worker:0"))
    failed = HostedOutcome(JobOutcome((ExitRecord("worker:0", 0, "n", 7, 3, None, 1.0),), initialised=True), ())
    client.put_blob(OUTCOME, encode(failed))
    assert submitter.follow(PLAN, lambda: None, (), results=True).outcome.exits == failed.outcome.exits


def test_a_report_may_be_larger_than_a_message(client, submitter):
    tail = tuple("x" * 2000 for _ in range(20))
    exits = tuple(ExitRecord(f"worker:{n}", n, "n", 7, 3, None, 1.0, stderr_tail=tail) for n in range(120))
    large = HostedOutcome(JobOutcome(exits, initialised=True), ())
    platform_side._tell(Channel(client), large, followed=False)
    assert submitter.follow(PLAN, lambda: None, (), results=False).outcome.exits == exits


@pytest.mark.parametrize("earlier", [[], [signal.SIGINT]])
def test_an_unknown_silent_coordinator_is_given_up(server, follower, earlier):
    """YARN forgets its applications when a ResourceManager without recovery is started again."""
    server.close()
    limit = {"job_lost_after_signal" if earlier else "job_lost": 0.5}
    submitter = follower(heartbeat=0.1, **limit)
    outcome = submitter.follow(PLAN, lambda: None, (), results=True, earlier=earlier).outcome
    assert "the platform does not say what became of the job" in outcome.agent_failure
    assert outcome.stopped_by == (earlier[0] if earlier else None)


def test_a_silent_launcher_is_left_for_another(server, submitter):
    server.close()
    with pytest.raises(LauncherLostError) as caught:
        submitter.follow(PLAN, lambda: None, (), results=True, earlier=[signal.SIGINT], replaced=lambda: True)
    assert caught.value.received == (signal.SIGINT,)


def test_an_answering_launcher_is_followed_regardless(client, submitter):
    client.put_blob(OUTCOME, encode(WELL))
    assert submitter.follow(PLAN, lambda: None, (), results=False, replaced=lambda: True).outcome == WELL.outcome


def test_ranks_know_how_often_their_launcher_restarted():
    spec = JobSpec(("a",), 2, log_dir="/logs", max_restarts=2)
    hosted = HostedJob("job", new_key(), spec, plan_local(spec, cores=2, environ={}), "python", 60.0, True)
    again = started_again(hosted, ["lost", "lost again"])
    assert [worker.env["TFCOLLECTIVE_RESTARTS"] for worker in again.plan.workers] == ["2", "2"]
    assert (again.spec.restarts, again.spec.log_dir, again.earlier) == (2, "/logs/restart.2", ("lost", "lost again"))
    assert started_again(hosted, []) == hosted
    assert HostedJob.from_bytes(again.to_bytes(), b"").earlier == again.earlier


def test_a_coordinator_hearing_the_submitter_is_kept(client, follower):
    """Answers to other questions may get lost."""
    submitter = follower(losing(4, OUTCOME), heartbeat=0.1, job_lost=1.0)  # for longer than a second
    client.put_blob(OUTCOME, encode(WELL))
    assert submitter.follow(PLAN, lambda: None, (), results=False).outcome == WELL.outcome


class Attentive:
    """The coordinator's client: one answer is lost, then the submitter has seen the outcome."""

    closed = False
    asked = 0

    def put_blob(self, name, data):
        assert name == OUTCOME

    def call(self, request):
        limit = TIMING.submitter_lost
        assert (request.key, request.presence) == (DONE, Presence(SUBMITTER, limit, limit))
        self.asked += 1
        if self.asked == 1:
            raise CoordinatorError("one slow answer")
        return Found(Entry(True, 1))


def test_a_living_submitter_has_unlimited_time():
    client = Attentive()
    platform_side._tell(Channel(client), WELL, followed=True)
    assert client.asked == 2
