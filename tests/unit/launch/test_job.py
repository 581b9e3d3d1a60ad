"""The outcome of a job with ranks whose end no agent has reported."""

from tfcollective.control.job_state import JobView
from tfcollective.control.state import TaskState, TaskView
from tfcollective.failures import ExitRecord
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.outcome.report import exit_code, render
from tfcollective.launch.running.job import _unreported
from tfcollective.tasks import TaskKey


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
