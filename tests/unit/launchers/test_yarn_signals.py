"""A signal to the submitter of a YARN application ends it, whenever it comes. Without YARN."""

import os
import signal
from types import SimpleNamespace

import pytest
from tfcollective_launchers.yarn.launcher import Submitted
from tfcollective_launchers.yarn.records import Record, recall
from tfcollective_launchers.yarn.skein_client import AppState

from tfcollective._launch.hosted.messages import HostedOutcome
from tfcollective._launch.launcher import JobOutcome

COORDINATOR = "127.0.0.1:1"
RECORD = Record(COORDINATOR, b"k", b"certificate", b"private")


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
        return APPLICATION, SimpleNamespace(cert_bytes=b"certificate", key_bytes=b"private")

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


APPLICATION = "application_1_1"


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "records"))


class Options(SimpleNamespace):
    """Its last question is whether the application is to be left to itself; ``when`` that comes, Ctrl-C does."""

    queue, allocation_timeout, master_memory_mib = "q", 60, 1

    def attempts(self, *, elastic):
        return 1

    @property
    def detach(self):
        if self.interrupted:
            assert recall(APPLICATION) == RECORD
            interrupt()
        return self.detached


class Client:
    """Follows the job, and notes the signals that came earlier."""

    def __init__(self, coordinator, key, timing):
        assert (coordinator, key) == (COORDINATOR, b"k")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass

    def follow(self, plan, gone, stop_signals, *, results, earlier, replaced):
        return HostedOutcome(JobOutcome((), initialised=True, stopped_by=earlier[0]), ())


def submit(yarn, *, detach, interrupted=False):
    options = Options(detached=detach, interrupted=interrupted)
    hosted = SimpleNamespace(key=b"k", plan=None, spec=SimpleNamespace(call=None, bounds=None))
    return Submitted(yarn, hosted, options, connect=Client).run({}, (signal.SIGINT,))


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("when", ["submit", "state", "endpoint"])
def test_before_it_is_followed(when, detach):
    yarn = Yarn(when)
    submission = submit(yarn, detach=detach)
    assert submission.ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert recall(APPLICATION) is None


def test_no_wait_after_a_second_one():
    yarn = Yarn("state", again=True)
    assert submit(yarn, detach=False).ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert yarn.cancelled == (False, True)


def test_just_before_it_is_detached():
    yarn = Yarn(None)
    assert submit(yarn, detach=True, interrupted=True).ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert recall(APPLICATION) is None


def test_when_it_is_about_to_be_followed():
    assert submit(Yarn(None), detach=False, interrupted=True).ended.outcome.stopped_by == signal.SIGINT


def test_without_one_it_is_left_to_itself():
    yarn = Yarn(None)
    assert submit(yarn, detach=True).state is None
    assert not yarn.killed
    assert recall(APPLICATION) == RECORD
