"""The state of a job for those who watch it: pure, from snapshots."""

from dataclasses import replace

from tfcollective._base.failures import ExceptionRecord, ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.verdict import Rules
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView, WorldChange
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.web.history import JobHistory

RAISED = ExceptionRecord("ValueError", "no rows", "Traceback\nValueError: no rows", 3.0)
END = ExitRecord("worker:1", 1, "n", 8, 1, None, 3.0, exception=RAISED, hint="look at the data")


def task(rank, **known):
    return TaskView(TaskKey("worker", rank), rank, TaskState.RUNNING, last_heartbeat=90.0, **known)


def running(*infos, at=100.0, **known):
    """A job whose ranks have published this; the calendar is 1000 s ahead of the coordinator's clock."""
    tasks = tuple(task(rank, info=info) for rank, info in enumerate(infos))
    return JobSnapshot(
        "job-1", tasks, at=at, time=at + 1000, initialised=True, generation=1, members=workers(len(infos)), **known
    )


def history(*jobs):
    seen = JobHistory()
    for job in jobs:
        seen.take(job)
    return seen


def standing(seen):
    document = seen.document()
    return document["state"], document["headline"]


def test_before_the_first_snapshot_it_waits():
    assert standing(history()) == ("waiting", "for the processes of the job to start")
    assert history().document()["ranks"] == []


def test_ranks_that_have_not_come_are_named():
    here = TaskView(TaskKey("worker", 0), 0, TaskState.WAITING)
    missing = TaskView(TaskKey("worker", 1), 1, TaskState.STARTED)
    job = JobSnapshot("job-1", (here, missing), initialised=True)
    assert standing(history(job)) == ("waiting", "for 1 of 2 ranks: worker:1")


def test_a_healthy_job_shows_its_step():
    seen = history(running({}, {}))
    assert standing(seen) == ("healthy", "training; no step has been published yet")
    seen.take(running({"step": 7, "steps_per_second": 2.5}, {}))
    assert standing(seen) == ("healthy", "step 7, 2.5 steps a second")


def test_progress_is_as_old_as_the_last_change():
    seen = history(running({"completed": 3}, {}), running({"completed": 3}, {}, at=104.0))
    assert [one["moved_s"] for one in seen.document()["ranks"]] == [4.0, None]
    seen.take(running({"completed": 4}, {}, at=105.0))
    (first, _) = seen.document()["ranks"]
    assert (first["moved_s"], first["heartbeat_s"], first["completed"]) == (0.0, 15.0, 4)


def test_the_first_cause_stands_above_all():
    job = running({}, {})
    failed = replace(job, tasks=(job.tasks[0], replace(job.tasks[1], state=TaskState.FAILED, exit=END)))
    seen = history(failed)
    said = "rank 1 (worker:1, pid 8) exited with code 1 (ValueError: no rows)"
    assert standing(seen) == ("failed", said)
    assert seen.document()["error"] == [said, "hint: look at the data", "Traceback", "ValueError: no rows"]
    assert seen.document()["ranks"][1]["end"] == "exited with code 1"


def test_an_elastic_job_outlasts_a_loss():
    killed = ExitRecord("worker:1", 1, "n", 8, None, 9, 3.0)
    job = running({}, {}, rules=Rules(elastic=True))
    change = WorldChange(2, 1, (TaskKey("worker", 1),), (), 0.5, "worker:1 was killed by SIGKILL", 99.0)
    tasks = (job.tasks[0], replace(job.tasks[1], state=TaskState.FAILED, exit=killed))
    seen = history(replace(job, tasks=tasks, members=workers(1), changes=(change,)))
    document = seen.document()
    assert document["state"] == "healthy"
    assert document["error"] == ["rank 1 (worker:1, pid 8) was killed by SIGKILL"]
    assert [one["rank"] for one in document["ranks"]] == [0, None]
    ((when, line),) = [(one["time"], one["text"]) for one in document["changes"]]
    assert when == 1099.0
    assert line.startswith("generation 2: 1 rank, without worker:1")


def test_a_restart_is_in_the_history():
    job = running({}, {})
    failed = replace(job, tasks=(job.tasks[0], replace(job.tasks[1], state=TaskState.FAILED, exit=END)))
    seen = history(failed, replace(running({}, {}, at=200.0), job="job-2"))
    (change,) = seen.document()["changes"]
    assert (change["time"], len(seen.restarts)) == (1200.0, 1)
    assert "all ranks were started again: rank 1" in change["text"]
    assert standing(seen)[0] == "healthy"


def test_the_outcome_is_the_last_word():
    seen = history(running({}, {}))
    assert not seen.document()["ended"]
    seen.end(JobOutcome((), True))
    assert (standing(seen), seen.document()["ended"]) == (("complete", "the job is complete"), True)
    seen.end(JobOutcome((END,), True))
    assert standing(seen)[0] == "failed"
    seen.end(JobOutcome((END,), True, stopped_by=15))
    assert standing(seen) == ("stopped", "by SIGTERM")


def test_figures_are_kept_once_and_thinned():
    seen = history()
    for step in range(1, 3000):
        seen.take(running({"step": step, "steps_per_second": 2.0, "loss": float("nan")}, {}, at=float(step)))
        seen.take(running({"step": step, "steps_per_second": 9.0}, {}, at=float(step)))
    times, rates, losses = seen.document()["points"]
    assert 500 <= len(times) == len(rates) == len(losses) <= 1000
    assert (times[0], times[-1]) == (1001.0, 3999.0)
    assert set(rates) == {2.0}
    assert set(losses) == {None}
