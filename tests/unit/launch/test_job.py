"""The outcome of a job: ranks whose end no agent has reported, and the verdict on what its coordinator knows."""

from dataclasses import replace

import pytest

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._base.verdict import Decision, Rules
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.running.job import judge, unreported


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
    return JobSnapshot("job", (*ended, *silent), initialised=True)


def test_an_unreported_end_is_no_success():
    seen = view(0, None)
    exits = tuple(task.exit for task in seen.tasks if task.exit is not None)
    outcome = JobOutcome(exits, seen.initialised, agent_failure=unreported(seen).message)
    assert exit_code(outcome) == 70
    assert "no agent has reported how rank 1 (worker:1) ended" in render(outcome)


def test_complete_reports_leave_nothing_to_say():
    assert unreported(view(0, 3)) is None


@pytest.mark.parametrize(
    ("codes", "initialised", "decision"),
    [((1, 127), False, Decision.FAIL), ((1, None), False, Decision.CONTINUE), ((1, 1), True, Decision.CONTINUE)],
)
def test_a_program_failing_everywhere_fails_its_job(codes, initialised, decision):
    first = [TaskKey("worker", rank) for rank in range(len(codes))]
    seen = replace(view(*codes), initialised=initialised)
    assert judge(seen, first, Rules(elastic=True)).decision is decision


def test_leavers_and_former_members_fail_no_job():
    first = [TaskKey("worker", rank) for rank in range(3)]
    seen = replace(view(0, 9, 9), members=tuple(first[:1]), leavers={str(first[1]): "SIGTERM"})
    judged = judge(seen, first, Rules(elastic=True), ended=True)
    assert judged.decision is Decision.COMPLETE
    assert [[one.task for one in ends] for ends in (judged.ends, judged.survived)] == [["worker:0"], ["worker:2"]]


@pytest.mark.parametrize(
    ("trained", "done", "decision"),
    [
        (False, (), Decision.FAIL),
        (True, (0,), Decision.COMPLETE),  # what it missed, the state of rank 0 has
        (True, (0, 1), Decision.FAIL),  # in what the program does after training
    ],
)
def test_members_may_miss_a_completed_trainings_end(trained, done, decision):
    first = [TaskKey("worker", rank) for rank in range(2)]
    completed = frozenset(first[index] for index in done)
    seen = replace(view(0, 9), members=tuple(first), trained=trained, done=completed)
    assert judge(seen, first, Rules(elastic=True), ended=True).decision is decision
