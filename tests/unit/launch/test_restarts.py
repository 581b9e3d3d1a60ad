"""When a job that failed is started again, and with which specification; the launcher returns scripted outcomes."""

import os
import re
import signal
import threading
import time

import pytest

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import (
    ConfigError,
    InvalidArgumentError,
    LaunchError,
    RendezvousError,
    StateError,
    UnsupportedError,
)
from tfcollective._base.failures import ErrorKind, ExceptionRecord, ExitRecord, read_exception, write_exception
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.settings import Settings
from tfcollective._launch.api import results_of
from tfcollective._launch.launcher import JobOutcome, Launcher, StartFailure
from tfcollective._launch.plan.planner import Plan, plan_local
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.restarts import obstacle, pause_before, restarted, run_job


def ended(code=0, number=None, *, exception=None, initialised=True, generation=1, **fields):
    record = ExitRecord("worker:0", 0, "n", 41, None if number else code, number, 1.0, exception=exception)
    return JobOutcome((record,), initialised, generation=generation, **fields)


def exception(kind="OSError", *, permanent=False):
    return ExceptionRecord(kind, "text", "", 1.0, ErrorKind.PERMANENT if permanent else ErrorKind.OWN)


KILLED = ended(number=signal.SIGKILL)


class Scripted(Launcher):
    """Gives the outcomes one after the other, and keeps the specifications."""

    def __init__(self, *outcomes, can_restart=True):
        self.outcomes, self.specs, self.can_restart = list(outcomes), [], can_restart

    def plan(self, spec):
        return Plan(())

    def run(self, spec, *, stop_signals=()):
        self.specs.append(spec)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def start(launcher, pauses=None, **fields):
    pauses = [] if pauses is None else pauses
    return run_job(launcher, JobSpec(("x",), 1, **fields), pause=pauses.append)


def test_a_failing_job_is_restarted_until_success(capsys):
    launcher, pauses = Scripted(KILLED, ended(3, generation=4), ended()), []
    outcome = start(launcher, pauses, max_restarts=5, log_dir="/logs")
    assert exit_code(outcome) == 0
    assert pauses == [1.0, 2.0]
    assert [(s.restarts, s.first_generation, s.log_dir) for s in launcher.specs] == [
        (0, 1, "/logs"),
        (1, 2, "/logs/restart.1"),
        (2, 5, "/logs/restart.2"),
    ]
    assert render(outcome).splitlines() == [
        "the job was started again 2 times:",
        "  1. because rank 0 (worker:0, pid 41) was killed by SIGKILL",
        "  2. because rank 0 (worker:0, pid 41) exited with code 3",
    ]
    said = capsys.readouterr().err
    assert "all ranks are started again in 1 s (restart 1 of 5)" in said
    assert "exited with code 3; all ranks are started again in 2 s (restart 2 of 5)" in said


LOST = ended(agent_failure="the host C (10.0.0.3) has not answered for 15 s", host_lost=True)
DOWN = LaunchError("nothing was started, because not all hosts can take part:\n  C: ssh cannot connect")


def test_an_unreachable_host_is_another_failed_start(capsys):
    launcher, pauses = Scripted(LOST, DOWN, RendezvousError("2 of 3 agents came"), ended()), []
    outcome = start(launcher, pauses, max_restarts=5)
    assert exit_code(outcome) == 0
    assert pauses == [1.0, 2.0, 4.0]
    assert [spec.restarts for spec in launcher.specs] == [0, 1, 2, 3]
    assert render(outcome).splitlines() == [
        "the job was started again 3 times:",
        "  1. because the host C (10.0.0.3) has not answered for 15 s",
        "  2. because nothing was started, because not all hosts can take part: C: ssh cannot connect",
        "  3. because 2 of 3 agents came",
    ]
    assert "C: ssh cannot connect; all ranks are started again in 2 s (restart 2 of 5)" in capsys.readouterr().err


def test_a_host_staying_down_exhausts_all_starts():
    outcome = start(Scripted(LOST, DOWN, DOWN), max_restarts=2)
    assert (exit_code(outcome), len(outcome.earlier)) == (75, 2)
    assert render(outcome).splitlines()[-2:] == str(DOWN).splitlines()
    with pytest.raises(LaunchError, match=r"(?s)started again 2 times:.*has not answered.*C: ssh cannot connect"):
        results_of(outcome, 1)


def test_a_first_start_that_fails_is_final():
    with pytest.raises(LaunchError, match="C: ssh cannot connect"):
        start(Scripted(DOWN), max_restarts=5)


def test_restarts_by_the_platform_are_reported_too():
    lost = "the application's master was lost (attempt 1)"
    again = ended(number=signal.SIGKILL, earlier=(lost,))
    outcome = start(Scripted(again, ended(earlier=("another",))), max_restarts=1)
    assert outcome.earlier == (lost, "rank 0 (worker:0, pid 41) was killed by SIGKILL", "another")


def test_unusable_settings_are_final_after_a_restart():
    outcome = start(Scripted(KILLED, ConfigError("no interface here is eth7")), max_restarts=5)
    assert exit_code(outcome) == 70
    text = render(outcome)
    assert "  1. because rank 0 (worker:0, pid 41) was killed by SIGKILL" in text
    assert "it was not started again" in text
    assert "no interface here is eth7" in text


def test_not_more_often_than_asked():
    launcher = Scripted(KILLED, KILLED)
    outcome = start(launcher, max_restarts=1)
    assert (exit_code(outcome), len(launcher.specs), outcome.not_restarted) == (137, 2, "")
    assert "started again once" in render(outcome)
    assert start(Scripted(KILLED)).earlier == ()


@pytest.mark.parametrize(
    "outcome",
    [
        ended(stopped_by=signal.SIGINT),
        ended(number=signal.SIGINT, stopped_by=signal.SIGTERM),
        ended(1, exception=exception("ModuleNotFoundError", permanent=True)),
        ended(2),
        ended(127, initialised=False),
        ended(1, initialised=False),
        ended(agent_failure="killed by a user", host_lost=True, not_restarted="the application was killed"),
    ],
)
def test_recurring_failures_and_ctrl_c_are_final(outcome):
    launcher = Scripted(outcome)
    last = start(launcher, max_restarts=3)
    assert len(launcher.specs) == 1
    assert ("it was not started again" in render(last)) == (outcome.stopped_by is None)


@pytest.mark.parametrize(
    "outcome",
    [
        KILLED,
        ended(1, exception=exception()),
        ended(1, exception=exception(), initialised=False),
        ended(number=signal.SIGSEGV, initialised=False),
        ended(agent_failure="the host b does not answer", host_lost=True),
        JobOutcome((), True, start_failure=StartFailure("1 of 2 came", True)),
    ],
)
def test_what_may_pass_is_tried_again(outcome):
    assert obstacle(outcome) is None
    launcher = Scripted(outcome, ended())
    assert len(start(launcher, max_restarts=1).earlier) == 1


def test_a_late_host_keeps_an_error_permanent():
    wrong = ExitRecord("worker:0", 0, "n", 41, 1, None, 1.0, exception=exception("ImportError", permanent=True), seen=9)
    late = {"agent_failure": "the host C has not ended its ranks", "host_lost": True}
    assert "ImportError" in obstacle(JobOutcome((wrong,), True, agent_failed_at=34.0, **late))
    assert obstacle(JobOutcome((wrong,), True, agent_failed_at=8.0, **late)) is None  # the host was gone before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_between_two_starts_ends_the_job(number):
    launcher, before = Scripted(KILLED, ended()), signal.getsignal(number)
    outcome = run_job(
        launcher,
        JobSpec(("x",), 1, max_restarts=3),
        stop_signals=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
        pause=lambda seconds: os.kill(os.getpid(), number),
    )
    assert (exit_code(outcome), len(launcher.specs)) == (128 + number, 1)
    assert "1. because rank 0 (worker:0, pid 41) was killed by SIGKILL" in render(outcome)
    assert signal.getsignal(number) is before


def test_a_program_signal_does_not_end_pauses():
    launcher = Scripted(KILLED, ended())
    spec = JobSpec(("x",), 1, max_restarts=1)
    outcome = run_job(
        launcher,
        spec,
        stop_signals=(signal.SIGTERM, *PASSED_ON),
        pause=lambda seconds: os.kill(os.getpid(), signal.SIGUSR1),
    )
    assert (exit_code(outcome), len(launcher.specs)) == (0, 2)


def test_a_signal_ends_the_pause_at_once():
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    begin = time.monotonic()
    spec = JobSpec(("x",), 1, max_restarts=9, restarts=8)
    assert exit_code(run_job(Scripted(KILLED), spec, stop_signals=(signal.SIGTERM,))) == 128 + signal.SIGTERM
    assert time.monotonic() - begin < pause_before(9)


def test_a_launcher_without_agents_cannot_restart():
    with pytest.raises(ConfigError, match="does not start the agents itself"):
        start(Scripted(can_restart=False), max_restarts=1)
    assert exit_code(start(Scripted(ended(), can_restart=False))) == 0


@pytest.mark.parametrize("count", [-1, True, "2", 1.5])
def test_how_often_is_a_whole_number(count):
    with pytest.raises(ConfigError, match=r"max_restarts .*: expected 0 or more, got"):
        JobSpec(("x",), 1, max_restarts=count)


def test_the_ranks_know_how_often_it_was():
    spec = restarted(JobSpec(("x",), 1, max_restarts=3), 7)
    settings = Settings.load(plan_local(spec, cores=1, environ={}).workers[0].env)
    assert (settings.max_restarts, settings.restarts, spec.first_generation) == (3, 1, 8)
    assert "TFCOLLECTIVE_RESTARTS" not in plan_local(JobSpec(("x",), 1), cores=1, environ={}).workers[0].env


def test_pauses_grow_to_half_a_minute():
    assert [pause_before(number) for number in (1, 2, 3, 6, 60)] == [1.0, 2.0, 4.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (ModuleNotFoundError("m"), True),
        (TypeError("t"), True),
        (InvalidArgumentError("i"), True),
        (UnsupportedError("u"), True),
        (ConfigError("c"), True),
        (StateError("s"), False),
        (ValueError("v"), False),
        (OSError("o"), False),
        (MemoryError(), False),
    ],
)
def test_which_exceptions_come_again(tmp_path, error, permanent):
    write_exception(str(tmp_path / "record"), error, now=1.0)
    record = read_exception(str(tmp_path / "record"))
    assert (record.kind is ErrorKind.PERMANENT) is permanent
    exit_record = ExitRecord("worker:0", 0, "n", 1, 1, None, 1.0, exception=record)
    assert decode(encode(exit_record), ExitRecord, "the record") == exit_record


def test_a_page_needs_the_coordinator_here():
    class Elsewhere(Scripted):
        observable = False

    launcher = Elsewhere(ended())
    with pytest.raises(UnsupportedError, match=r"web \(--web\): the coordinator of this job runs on the platform"):
        run_job(launcher, JobSpec(("x",), 1, web="auto"))
    assert not launcher.specs


def test_a_page_is_announced_and_ends(capsys):
    launcher = Scripted(ended())
    assert exit_code(run_job(launcher, JobSpec(("x",), 1, web="auto"))) == 0
    assert re.search(r"watch the job at http://127.0.0.1:[0-9]+/\S{32}/\n", capsys.readouterr().err)
    assert launcher.observers == ()
