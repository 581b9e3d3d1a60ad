"""A signal to the submitter of a YARN application ends it, whenever it comes. Without YARN."""

import os
import signal
from types import SimpleNamespace

import pytest
from tfcollective_launchers.yarn import launcher
from tfcollective_launchers.yarn.launcher import _Submitted
from tfcollective_launchers.yarn.skein_client import AppState

from tfcollective.launch.hosted.messages import HostedOutcome
from tfcollective.launch.launcher import JobOutcome

COORDINATOR = "127.0.0.1:1"


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


class Yarn:
    """Runs the application at once. ``when`` says in which call Ctrl-C comes, ``again`` whether a second one comes
    while its end is waited for."""

    def __init__(self, when, *, again=False):
        self.when = when
        self.again = again
        self.cancelled = None
        self.killed = False

    def submit(self, document, cancelled):
        self._at("submit")
        return "application_1_1", None

    def state(self, app_id):
        self._at("state")
        return AppState("FINISHED" if self.killed else "RUNNING", "UNDEFINED", "", "default", "", "h")

    def endpoint(self, app_id, security):
        self._at("endpoint")
        return COORDINATOR

    def kill(self, app_id):
        self.killed = True

    def wait_for_end(self, app_id, seconds, cancelled=lambda: False):
        if self.again:
            before = cancelled()
            interrupt()
            self.cancelled = (before, cancelled())
        return AppState("FINISHED", "KILLED", "", "default", "", "h")

    def _at(self, call):
        if call == self.when:
            self.when = None
            interrupt()


@pytest.fixture
def remembered(monkeypatch):
    """What was remembered of the application; its ``when`` is as that of the stand-in for YARN."""
    kept = SimpleNamespace(when=None, now=[])

    def remember(app_id, coordinator, key):
        kept.now.append(app_id)
        if kept.when == "remember":
            interrupt()

    def forget(app_id):
        kept.now[:] = []

    monkeypatch.setattr(launcher, "records", SimpleNamespace(remember=remember, forget=forget))
    return kept


def submit(yarn, *, detach):
    options = SimpleNamespace(queue="q", allocation_timeout=60, detach=detach, master_memory_mib=1)
    hosted = SimpleNamespace(key=b"k", plan=None, spec=SimpleNamespace(call=None))
    return _Submitted(yarn, hosted, options).run({}, (signal.SIGINT,))


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("when", ["submit", "state", "endpoint"])
def test_before_it_is_followed(when, detach, remembered):
    yarn = Yarn(when)
    submission = submit(yarn, detach=detach)
    assert submission.ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert remembered.now == []


def test_no_wait_after_a_second_one(remembered):
    yarn = Yarn("state", again=True)
    assert submit(yarn, detach=False).ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert yarn.cancelled == (False, True)


def test_when_it_is_about_to_be_left_to_itself(remembered):
    remembered.when = "remember"
    yarn = Yarn(None)
    assert submit(yarn, detach=True).ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert remembered.now == []


def test_when_it_is_about_to_be_followed(remembered, monkeypatch):
    remembered.when = "remember"
    forwarded = []

    class Client:
        def __init__(self, coordinator, key):
            assert coordinator == COORDINATOR

        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

        def follow(self, plan, gone, stop_signals, *, results, earlier):
            forwarded.extend(earlier)
            return HostedOutcome(JobOutcome((), initialised=True, stopped_by=earlier[0]), ())

    monkeypatch.setattr(launcher, "HostedClient", Client)
    assert submit(Yarn(None), detach=False).ended.outcome.stopped_by == signal.SIGINT
    assert forwarded == [signal.SIGINT]


def test_without_one_it_is_left_to_itself(remembered):
    yarn = Yarn(None)
    assert submit(yarn, detach=True).state is None
    assert not yarn.killed
    assert remembered.now == ["application_1_1"]
