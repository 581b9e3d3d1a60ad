"""The outcome of a job: ranks whose end no agent has reported, and those that an elastic job has outlasted."""

import signal
from dataclasses import replace

import pytest

from tfcollective._base.failures import ExceptionRecord, ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._control.serve.job import JobView
from tfcollective._control.state.membership import RendezvousFailure, TaskState, TaskView
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.running.job import _fails_everywhere, _survived, _unreported


def view(*codes):
    tasks = [TaskView(TaskKey("worker", rank), rank) for rank in range(len(codes))]
    ended = [
        TaskView(
            one.task, one.rank, TaskState.EXITED, exit=ExitRecord(str(one.task), one.rank, "n", 1, code, None, 1.0)
        )
        for one, code in zip(tasks, codes, strict=True)
        if code is not None
    ]
    silent = [one for one, code in zip(tasks, codes, strict=True) if code is None]
    return JobView((*ended, *silent), None, initialised=True)


def test_a_rank_whose_end_was_not_reported_is_not_a_success():
    seen = view(0, None)
    exits = tuple(task.exit for task in seen.tasks if task.exit is not None)
    outcome = JobOutcome(exits, seen.initialised, agent_failure=_unreported(seen).message)
    assert exit_code(outcome) == 70
    assert "no agent has reported how rank 1 (worker:1) ended" in render(outcome)


def test_when_all_are_reported_there_is_nothing_to_say():
    assert _unreported(view(0, 3)) is None


# ---- before the first world of an elastic job ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "initialised", "fails"),
    [
        ((1, 127), False, True),
        ((1, None), False, False),  # one runs
        ((1, 0), False, False),
        ((1, 1), True, False),  # one that was started in their place waits for others
    ],
)
def test_a_program_fails_everywhere_once_all_first_ranks_have_given_up(codes, initialised, fails):
    first = [TaskKey("worker", rank) for rank in range(len(codes))]
    assert _fails_everywhere(replace(view(*codes), initialised=initialised), first) is fails


def test_before_the_coordinator_has_spoken_nothing_has_failed():
    assert not _fails_everywhere(JobView((), None, initialised=False), [TaskKey("worker", 0)])


def test_ranks_that_were_killed_stopped_or_about_to_leave_have_not_given_up():
    asked = replace(KILLED, signal=None, exit_code=3)
    assert asked.gave_up
    assert not any(one.gave_up for one in (KILLED, replace(asked, stopped=True), replace(asked, leaving=True)))


# ---- what an elastic job has outlasted -------------------------------------------------------------------------------

KILLED = ExitRecord("worker:1", 1, "n", 1, None, signal.SIGKILL, 1.0)
MISTAKEN = ExitRecord(
    "worker:2", 2, "n", 1, 1, None, 2.0, exception=ExceptionRecord("ConfigError", "x", "", 2.0, consequence=False)
)
FAILED = RendezvousFailure("there is no next world", (), timed_out=False)


def left(*records, members=(0,), failure=None):
    """Of a job whose newest world has these members."""
    tasks = tuple(TaskKey("worker", index) for index in members)
    return _survived(records, JobView((), failure, initialised=True, members=tasks))


def test_what_was_lost_before_an_error_of_the_program_was_outlasted():
    stopped = replace(KILLED, task="worker:3", rank=3, stopped=True)
    assert left(KILLED, MISTAKEN, stopped, failure=FAILED) == (KILLED,)


def test_a_job_that_outlasts_errors_of_the_program_has_outlasted_them():
    members = JobView((), None, initialised=True, members=(TaskKey("worker", 0),))
    ended = replace(MISTAKEN, task="worker:0", rank=0, exit_code=0, exception=None)
    assert _survived((ended, KILLED, MISTAKEN), members, outlasts_errors=True) == (KILLED, MISTAKEN)


def test_what_was_lost_before_the_job_failed_otherwise_may_be_why():
    assert left(KILLED, replace(KILLED, task="worker:0", rank=0), failure=FAILED) == ()


def test_a_member_that_is_lost_together_with_an_error_of_the_program_may_be_why():
    assert left(KILLED, MISTAKEN, members=(0, 1), failure=FAILED) == ()
