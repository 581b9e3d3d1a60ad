"""The state of a job for those who watch it, and what has led to it: made from its snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.exit_codes import signal_name
from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._base.verdict import Decision, first_cause
from tfcollective._control.snapshot import JobSnapshot, TaskState, TaskView
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.report.report import describe_change, describe_end, exit_code, headline
from tfcollective._launch.running.job import judge

_MOST_POINTS = 1000
_MOST_ROWS = 512  # a long elastic job has replaced hundreds
_MOST_LINES = 60


@dataclass(frozen=True)
class Point:
    """The newest figures of training at one time, in seconds since 1970; None: not published."""

    time: float
    step: int
    steps_per_second: float | None
    loss: float | None


class JobHistory:
    """Follows one job through its starts. Not thread-safe.

    Attributes:
        job: its newest snapshot; None before the first.
        outcome: how it ended; None as long as it runs.
        points: the figures of training over time; when there are too many, every second one is left out.
    """

    def __init__(self) -> None:
        self._moved: dict[TaskKey, tuple[object, float]] = {}  # its step and operations, and since when they are these
        self._restarted: list[tuple[float, str]] = []
        self.job: JobSnapshot | None = None
        self.outcome: JobOutcome | None = None
        self.points: list[Point] = []

    @property
    def restarts(self) -> Sequence[str]:
        """Why all ranks were started again, each time in one line."""
        return [why for _, why in self._restarted]

    def take(self, job: JobSnapshot) -> None:
        """Takes the next snapshot of the job, or the first one after it was started again."""
        if self.job is not None and self.job.job != job.job:
            self._restarted.append((job.time, self._headline(self.job)))
            self._moved.clear()
        self.job = job
        for one in job.tasks:
            mark = one.info.get("step"), one.info.get("completed")
            if self._moved.get(one.task, (None, 0.0))[0] != mark:
                self._moved[one.task] = mark, job.time
        self._note_point(job)

    def end(self, outcome: JobOutcome) -> None:
        """Takes the outcome of the job."""
        self.outcome = outcome

    def moved(self, task: TaskKey) -> float | None:
        """When the step or the operations of a task were first seen as they are, in seconds since 1970; None: it has
        published none."""
        mark, since = self._moved.get(task, (None, 0.0))
        return since if mark not in (None, (None, None)) else None

    def document(self) -> Mapping[str, object]:
        """The state of the job as JSON for the page."""
        job = self.job or JobSnapshot("", ())
        state, text = self._standing()
        return {
            "job": job.job,
            "now": job.time,
            "state": state,
            "headline": text,
            "error": self._first_error(job),
            "generation": job.generation,
            "size": len(job.members),
            "ended": self.outcome is not None,
            "ranks": [self._row(job, one) for one in _shown(job)],
            "changes": [{"time": when, "text": line} for when, line in self._changes(job)],
            "points": [[one.time for one in self.points], *self._curves()],
        }

    # ---- how it stands ---------------------------------------------------------------------------------------------

    def _standing(self) -> tuple[str, str]:
        """One word for the state of the job, and the sentence that explains it."""
        outcome, job = self.outcome, self.job
        if outcome is not None and outcome.stopped_by is not None:
            return "stopped", f"by {signal_name(outcome.stopped_by)}"
        if outcome is not None:
            return ("failed", headline(outcome)) if exit_code(outcome) else ("complete", "the job is complete")
        if job is None:
            return "waiting", "for the processes of the job to start"
        if judge(job, [one.task for one in job.tasks], job.rules).decision in (Decision.FAIL, Decision.RESTART):
            return "failed", self._headline(job)
        if job.generation == 0:
            missing = [str(one.task) for one in job.tasks if one.state in (TaskState.EXPECTED, TaskState.STARTED)]
            return "waiting", f"for {len(missing)} of {len(job.tasks)} ranks: {', '.join(missing[:8])}"
        if job.pending:
            return "waiting", f"for generation {job.pending} of the world to form"
        return "healthy", self._progress()

    def _headline(self, job: JobSnapshot) -> str:
        """Why this start of the job has failed, as far as it is known."""
        failure = None if job.failure is None else job.failure.message
        first = first_cause(_ends(job))
        return describe_end(first) if first is not None else failure or "no reason is known"

    def _progress(self) -> str:
        if not self.points:
            return "training; no step has been published yet"
        newest = self.points[-1]
        rate = "" if newest.steps_per_second is None else f", {newest.steps_per_second:.3g} steps a second"
        return f"step {newest.step}{rate}"

    def _first_error(self, job: JobSnapshot) -> Sequence[str]:
        """The first failure and what its process said last; empty without one."""
        first = first_cause(_ends(job))
        if first is None:
            return ()
        said = first.exception
        lines = first.stderr_tail if said is None else (said.folded or said.traceback).splitlines()
        return [describe_end(first), *([f"hint: {first.hint}"] if first.hint else []), *lines[-_MOST_LINES:]]

    def _row(self, job: JobSnapshot, one: TaskView) -> Mapping[str, object]:
        moved, info = self.moved(one.task), one.info
        shown = ("step", "steps", "epoch", "epochs", "steps_per_second", "loss", "completed", "url")
        return {
            **{name: info[name] for name in shown if isinstance(info.get(name), int | float | str)},
            "rank": job.rank_of(one),
            "task": str(one.task),
            "host": one.host or one.node,
            "pid": one.pid or None,
            "state": one.state.value,
            "moved_s": None if moved is None or one.ended else job.time - moved,
            "heartbeat_s": None if one.last_heartbeat is None or one.ended else job.at - one.last_heartbeat,
            "end": None if one.exit is None or not one.exit.failed else one.exit.how,
        }

    def _changes(self, job: JobSnapshot) -> Iterator[tuple[float, str]]:
        """The history of the world, newest first."""
        for change in reversed(job.changes):
            yield job.calendar(change.at), describe_change(change)
        for when, why in reversed(self._restarted):
            yield when, f"all ranks were started again: {why}"

    # ---- figures ---------------------------------------------------------------------------------------------------

    def _note_point(self, job: JobSnapshot) -> None:
        first = job.members[0] if job.members else None
        info = next((one.info for one in job.tasks if one.task == first), {})
        step, rate, loss = info.get("step"), info.get("steps_per_second"), info.get("loss")
        if not isinstance(step, int) or (self.points and self.points[-1].step == step):
            return
        self.points.append(Point(job.time, step, _number(rate), _number(loss)))
        if len(self.points) > _MOST_POINTS:
            del self.points[1:-1:2]

    def _curves(self) -> tuple[Sequence[float | None], Sequence[float | None]]:
        return [one.steps_per_second for one in self.points], [one.loss for one in self.points]


def _ends(job: JobSnapshot) -> Sequence[ExitRecord]:
    return [one.exit for one in job.tasks if one.exit is not None]


def _shown(job: JobSnapshot) -> Sequence[TaskView]:
    """The tasks of the page: the world in rank order, then the newest of the others, as many as fit."""
    members = set(job.members)
    world = sorted((one for one in job.tasks if one.task in members), key=lambda one: one.rank)
    others = [one for one in job.all_tasks if one.task not in members]
    return (*world, *others[-_MOST_ROWS:])[: max(_MOST_ROWS, len(world))]


def _number(value: object) -> float | None:
    """A finite number; JSON has no others."""
    fits = isinstance(value, int | float) and value == value and abs(value) != float("inf")
    return float(value) if fits else None  # type: ignore[arg-type]
