"""A lost master of an application is started again by YARN, and its submitter goes on there. Without YARN."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tfcollective_launchers.yarn.application import SERVING_FILE, application
from tfcollective_launchers.yarn.launcher import Submitted, look_for_master
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.records import Record, recall
from tfcollective_launchers.yarn.skein_client import AppState

from tfcollective._base.errors import ConfigError
from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.timing import TIMING
from tfcollective._launch.hosted.messages import HostedOutcome
from tfcollective._launch.hosted.submitter_side import LauncherLostError
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.report import exit_code
from tfcollective._testing.clock import ManualClock

APPLICATION = "application_1_1"
SECURITY = SimpleNamespace(cert_bytes=b"c", key_bytes=b"p")
ELASTIC = JobSpec(("a",), 2, min_proc=1)


def at(state, port, diagnostics=""):
    return AppState(state, "FAILED", diagnostics, "default", "", "h", port)


class Yarn:
    """Says one state after the other, the last one again and again; a master's coordinator has the port of the master
    and one more."""

    def __init__(self, *states):
        self.states = list(states)
        self.now = states[0]
        self.killed = False

    def submit(self, document, cancelled):
        return APPLICATION, SECURITY

    def state(self, app_id):
        self.now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return self.now

    def endpoint(self, app_id, security):
        return f"h:{self.now.port + 1}"

    def attempt(self, app_id, security):
        return self.now.port

    def credentials(self, certificate, key):
        assert (certificate, key) == (b"c", b"p")
        return SECURITY

    def kill(self, app_id):
        self.killed = True

    def wait_for_end(self, app_id, seconds, cancelled=lambda: False):
        return at("FINISHED", 0)


class Follower:
    """Follows the job: the first coordinator is lost, after a signal or without one."""

    def __init__(self, signals=()):
        self.signals = signals
        self.followed = []

    def __call__(self, coordinator, key, timing):
        self.followed.append((coordinator, timing.job_lost))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass

    def follow(self, plan, gone, stop_signals, *, results, earlier, replaced):
        assert recall(APPLICATION).coordinator == self.followed[-1][0]
        if len(self.followed) == 1:
            assert gone() is None
            assert replaced()
            raise LauncherLostError([*earlier, *self.signals])
        assert not replaced()
        return HostedOutcome(JobOutcome((), initialised=True), ())


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "records"))
    monkeypatch.setattr("tfcollective_launchers.yarn.launcher.end_of_log", lambda app_id, file: ())


def follow(yarn, follower, **fields):
    options = YarnOptions(python="/p", allocation_timeout=20.0, **fields)
    hosted = SimpleNamespace(key=b"k", plan=None, spec=ELASTIC)
    return Submitted(yarn, hosted, options, ManualClock(), follower).run({}, ())


def test_the_submitter_follows_the_next_master(capsys):
    first, none, second = at("RUNNING", 1), at("ACCEPTED", -1), at("RUNNING", 2)
    follower = Follower()
    yarn = Yarn(first, first, none, none, second)
    assert exit_code(follow(yarn, follower).ended.outcome) == 0
    assert follower.followed == [("h:2", TIMING.launcher_lost), ("h:3", TIMING.launcher_lost)]
    assert not yarn.killed
    err = capsys.readouterr().err
    assert f"{APPLICATION}: its master was lost: YARN starts it again, and all ranks with it" in err
    assert f"{APPLICATION}: accepted" in err


def test_a_signal_without_master_ends_the_application():
    yarn = Yarn(at("RUNNING", 1), at("RUNNING", 1), at("ACCEPTED", -1))
    submission = follow(yarn, Follower([signal.SIGINT]))
    assert submission.ended.outcome.stopped_by == signal.SIGINT
    assert yarn.killed
    assert recall(APPLICATION) is None


def test_losing_the_master_too_often_is_final():
    """Such a job can be submitted again."""
    running, none = at("RUNNING", 1), at("ACCEPTED", -1)
    yarn = Yarn(running, running, none, at("FAILED", 0, "Application failed 2 times due to AM Container"))
    outcome = follow(yarn, Follower()).ended.outcome
    assert exit_code(outcome) == ExitCode.LOST
    assert "Application failed 2 times" in outcome.agent_failure


def test_a_fixed_job_has_one_master():
    staged = {"tfcollective-job.json": "/j", "tfcollective.key": "/k"}
    found = [
        application(spec, YarnOptions(python="/p", master_attempts=given), staged, {})["max_attempts"]
        for spec, given in ((JobSpec(("a",), 1), None), (JobSpec(("a",), 1), 3), (ELASTIC, None), (ELASTIC, 1))
    ]
    assert found == [1, 3, 2, 1]
    with pytest.raises(ConfigError, match="master_attempts: expected 1 or more, got 0"):
        YarnOptions(master_attempts=0)


def test_status_finds_the_coordinator_of_the_next_master():
    known = Record("h:2", b"k", b"c", b"p")
    assert look_for_master(Yarn(at("RUNNING", 1)), APPLICATION, at("RUNNING", 1), known) == ("", "h:2")
    lost = ("it was lost; YARN starts it again", None)
    assert look_for_master(Yarn(at("ACCEPTED", -1)), APPLICATION, at("ACCEPTED", -1), known) == lost
    again = ("attempt 2; lost before it: 1", "h:3")
    assert look_for_master(Yarn(at("RUNNING", 2)), APPLICATION, at("RUNNING", 2), known) == again
    assert look_for_master(Yarn(at("RUNNING", 2)), APPLICATION, at("RUNNING", 2), None) == ("", None)
    assert look_for_master(Yarn(at("FAILED", 2)), APPLICATION, at("FAILED", 2), known) == ("", None)


@pytest.mark.parametrize(
    ("serving", "end", "killed"),
    [(True, "kill -9 $$", True), (False, "kill -9 $$", False), (False, "exit 143", False), (False, "exit 0", False)],
)
def test_a_signalled_master_kills_skeins_process(tmp_path, serving, end, killed):
    """What fails at once would fail again: then skein ends the application."""
    (tmp_path / "python").write_text(f"#!/bin/bash\n{f'touch {SERVING_FILE}' if serving else ''}\n{end}\n")
    (tmp_path / "python").chmod(0o755)
    staged = {"tfcollective-job.json": "/j", "tfcollective.key": "/k"}
    made = application(ELASTIC, YarnOptions(python=str(tmp_path / "python")), staged, {})
    program = "import subprocess, sys; sys.exit(subprocess.run(['bash', '-c', sys.argv[1]]).returncode % 256)"
    parent = [sys.executable, "-c", program, made["master"]["script"], "skein"]
    done = subprocess.run(parent, cwd=tmp_path, check=False, timeout=120)
    assert (done.returncode == -signal.SIGKILL) is killed
