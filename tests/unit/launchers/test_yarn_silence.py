"""The launcher waits for a ResourceManager that does not answer for a while. Without YARN."""

import queue
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tfcollective_launchers.yarn.launcher import Submitted, with_cause
from tfcollective_launchers.yarn.skein_client import (
    ATTEMPT_KEY,
    ENDPOINT_KEY,
    AppState,
    SkeinError,
    YarnClient,
    end_driver,
    upload_time,
)
from time_limits import within

from tfcollective._base.failures import ExitReason, ExitRecord
from tfcollective._launch.hosted.messages import ContainerRow, HostedOutcome
from tfcollective._launch.launcher import JobOutcome
from tfcollective._testing.clock import ManualClock

REPORT = SimpleNamespace(
    state="FINISHED", final_status="SUCCEEDED", diagnostics="", queue="q", tracking_url="", host="h", port=1
)
RUNNING = SimpleNamespace(**{**vars(REPORT), "state": "RUNNING"})


class SkeinsError(Exception):
    """What skein raises."""


class Client:
    """skein's client: it fails this many times before it answers."""

    def __init__(self, failures, report=REPORT):
        self.failures, self.report, self.said = failures, report, "Unable to connect"

    def application_report(self, app_id):
        self.failures -= 1
        if self.failures >= 0:
            raise SkeinsError(self.said)
        return self.report

    @contextmanager
    def connect(self, app_id, *, wait, security):
        """To the application's master."""
        yield SimpleNamespace(kv={ENDPOINT_KEY: b"127.0.0.1:1", ATTEMPT_KEY: b"2"})

    def kill_application(self, app_id):
        raise SkeinsError("Unable to connect")


SKEIN = SimpleNamespace(exceptions=SimpleNamespace(SkeinError=SkeinsError))


def yarn(failures):
    return YarnClient(Client(failures), SKEIN, ManualClock())


class Slow:
    """skein's client: submit() returns once `sent` is set."""

    def __init__(self):
        self.sent, self.killed = threading.Event(), queue.SimpleQueue()

    def submit(self, spec):
        assert self.sent.wait(within(20))
        return "application_1_1"

    def kill_application(self, app_id):
        self.killed.put(app_id)


class Skein:
    """What describes an application."""

    exceptions = SimpleNamespace(SkeinError=SkeinsError)
    ApplicationSpec = SimpleNamespace(from_dict=lambda document: SimpleNamespace(master=SimpleNamespace()))
    Security = SimpleNamespace(new_credentials=lambda: None)


def test_an_application_sent_too_late_is_killed():
    slow = Slow()
    with pytest.raises(SkeinError, match=r"submitting the application took more than 0\.05 s"):
        YarnClient(slow, Skein, start=0.05, late=0.05).submit({})
    slow.sent.set()
    assert slow.killed.get(timeout=within(20)) == "application_1_1"


def test_a_late_application_is_still_killed():
    """A process that has given up could not kill an application that YARN accepts a moment later."""
    slow = Slow()
    threading.Timer(0.5, slow.sent.set).start()
    with pytest.raises(SkeinError, match="took more than"):
        YarnClient(slow, Skein, start=0.05, late=within(20)).submit({})
    assert slow.sent.is_set()
    assert slow.killed.get(timeout=within(20)) == "application_1_1"


def test_who_stops_before_the_submission_submits_nothing():
    assert YarnClient(None, Skein).submit({}, lambda: True) is None


def test_skeins_process_is_killed_if_it_stays():
    killed = threading.Event()
    hangs = SimpleNamespace(close=threading.Event().wait, _proc=SimpleNamespace(kill=killed.set))
    end_driver(hangs, 0.05)
    assert killed.is_set()


def test_sending_files_ends_with_ctrl_c():
    looks, slow = [], Slow()

    def cancelled():
        looks.append(None)
        return len(looks) > 3

    assert YarnClient(slow, Skein, late=0.01).submit({}, cancelled) is None
    slow.sent.set()
    assert slow.killed.get(timeout=within(20)) == "application_1_1"


def test_large_files_have_time_to_be_sent(tmp_path):
    with (tmp_path / "environment.pex").open("wb") as file:
        file.truncate(600 << 20)
    files = {
        "a": {"source": f"file://{tmp_path}/environment.pex"},
        "b": {"source": "hdfs:///there"},
        "c": "file://none",
    }
    assert upload_time({"master": {"files": files}, "services": {"worker": {"files": files, "n": 1}}}) == 600


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "records"))


class Options(SimpleNamespace):
    allocation_timeout, master_memory_mib = 20.0, 1

    def attempts(self, *, elastic):
        return 1


def submitted(client):
    hosted = SimpleNamespace(key=b"k", spec=SimpleNamespace(bounds=None))
    found = Submitted(client, hosted, Options(), ManualClock())
    found._security = SimpleNamespace(cert_bytes=b"c", key_bytes=b"k")
    return found


def test_an_end_is_seen_later():
    assert yarn(5).wait_for_end("application_1_1", 40.0).final_status == "SUCCEEDED"


def test_waiting_for_an_end_can_be_cancelled():
    running = YarnClient(Client(0, RUNNING), SKEIN, ManualClock())
    looks = []

    def cancelled():
        looks.append(None)
        return len(looks) == 3

    assert not running.wait_for_end("application_1_1", 40.0, cancelled).ended
    assert len(looks) == 3


def test_an_unreported_end_is_an_error():
    with pytest.raises(SkeinError, match="report of application_1_1: Unable to connect"):
        yarn(10**6).wait_for_end("application_1_1", 40.0)


def test_an_error_of_skein_without_text_explains():
    """skein raises an empty DriverError where Java's exception has no message."""
    client = Client(10**6)
    client.said = ""
    said = r"report of application_1_1: skein's Java process gave no reason \(SkeinsError\)"
    with pytest.raises(SkeinError, match=said):
        YarnClient(client, SKEIN, ManualClock()).state("application_1_1")


def test_the_coordinator_is_found_later():
    assert submitted(YarnClient(Client(5, RUNNING), SKEIN, ManualClock()))._find_coordinator([]) == "127.0.0.1:1"


def test_an_unreported_coordinator_is_an_error():
    with pytest.raises(SkeinError, match="Unable to connect"):
        submitted(yarn(10**6))._find_coordinator([])


def test_the_outcome_shows_without_yarns_description(capsys):
    row = ContainerRow("worker-0", ("worker:0",), "h", "the page of its log", 1.0)
    ended = HostedOutcome(JobOutcome((), initialised=True, results={"worker:0": b"1"}), (row,))
    assert submitted(yarn(10**6))._described(ended).ended == ended
    assert "the page of its log" in capsys.readouterr().err


def test_containers_of_killed_applications_are_no_cause():
    """Their nodes may end before the master's."""
    gone = AppState("KILLED", "KILLED", "killed by a user", "default", "", "h")
    lost = JobOutcome((), initialised=True, agent_failure="the container of worker-0 was ended", host_lost=True)
    for outcome, failure, final in (
        (lost, "killed by a user", "the application was killed"),
        (replace(lost, host_lost=False), "the container of worker-0 was ended", ""),
        (replace(lost, stopped_by=2), "the container of worker-0 was ended", ""),
        (JobOutcome((), initialised=True), None, ""),
    ):
        reported = with_cause(
            HostedOutcome(outcome, (ContainerRow("worker-0", ()),)), gone, lambda state: state.why
        ).outcome
        assert (reported.agent_failure, reported.not_restarted) == (failure, final)


def test_ranks_stopped_by_yarn_are_no_cause():
    gone = AppState("FAILED", "FAILED", "the master was killed", "default", "", "h")
    stopped = ExitRecord("worker:0", 0, "n", 7, None, 15, 2.0, ExitReason.STOPPED)
    raised = ExitRecord("worker:0", 0, "n", 7, 1, None, 2.0)
    reported = [
        with_cause(
            HostedOutcome(JobOutcome(exits, initialised=True, stopped_by=by), ()), state, lambda state: state.why
        )
        for exits, by, state in (
            ((stopped,), None, gone),
            ((raised,), None, gone),
            ((stopped,), 2, gone),
            ((), None, gone),
            ((stopped,), None, replace(gone, state="FINISHED")),
        )
    ]
    assert [one.outcome.agent_failure for one in reported] == ["the master was killed", None, None, None, None]
