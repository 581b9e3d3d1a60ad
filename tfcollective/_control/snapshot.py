"""A job at one moment: the one description of it that the launcher judges, the coordinator answers with, and
``tfcollective status``, MLflow and the page of ``--web`` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._base.verdict import Rules

#: What ranks do in a new world before they go on: see :class:`tfcollective._runtime.change_times.ChangeTimes`.
PHASES_AFTER = ("connect", "sync", "first_step")


class TaskState(str, Enum):
    """The state of a task, as the coordinator knows it."""

    EXPECTED = "expected"  # nothing has been heard of it
    STARTED = "started"  # its process runs
    WAITING = "waiting"  # in init(), waits for the others
    RUNNING = "running"  # a member of the world
    LEFT = "left"  # left the world in order
    EXITED = "exited"  # its process ended with code 0
    FAILED = "failed"  # its process ended otherwise


@dataclass(frozen=True)
class TaskView:
    """A view of one task; ``info`` comes with its newest heartbeat, ``said`` is when that was sent, on the monotonic
    clock of its host.

    ``rank`` is the newest one that it has had, before the first world its place; an auxiliary task has none
    (``NO_RANK``).
    """

    task: TaskKey
    rank: int
    state: TaskState = TaskState.EXPECTED
    node: str = ""
    pid: int = 0
    last_heartbeat: float | None = None
    activity: str = ""
    info: Mapping[str, object] = field(default_factory=dict)
    said: float = 0.0
    exit: ExitRecord | None = None
    host: str = ""

    @property
    def ended(self) -> bool:
        """True once its process is gone."""
        return self.state in (TaskState.EXITED, TaskState.FAILED)


@dataclass(frozen=True)
class RendezvousFailure:
    """The reason why a round ended without a world.

    Attributes:
        message: for the user.
        missing: the tasks that had not joined.
        timed_out: whether the start timeout was the reason.
        over: whether there is none because there is nothing left to do.
    """

    message: str
    missing: tuple[str, ...]
    timed_out: bool
    over: bool = False


@dataclass(frozen=True)
class WorldChange:
    """A change from one world to the next.

    Attributes:
        generation: of the new one.
        size: of the new one.
        lost: the members of the old one that are not in it.
        joined: its members that were not in the old one.
        seconds: from the first news of the change until all its members had come.
        cause: how the lost members ended, in words; empty if none is lost.
        at: when all had come, on the coordinator's monotonic clock.
        detect: how much of ``seconds`` had passed when the first member came.
        after: what followed, in seconds by phase, on the slowest rank: those of :data:`PHASES_AFTER` that are known.
    """

    generation: int
    size: int
    lost: tuple[TaskKey, ...]
    joined: tuple[TaskKey, ...]
    seconds: float
    cause: str = ""
    at: float = 0.0
    detect: float = 0.0

    after: Mapping[str, float] = field(default_factory=dict)

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds by phase, in their order: ``detect`` until the first member came, ``agree`` until all had, and what
        followed."""
        after = {name: self.after[name] for name in PHASES_AFTER if name in self.after}
        return {"detect": self.detect, "agree": self.seconds - self.detect, **after}


@dataclass(frozen=True)
class JobSnapshot:
    """A coordinator's knowledge of its job at one moment.

    Attributes:
        job: its name.
        tasks: the trainers, in the order of their admission: in rank order for a job of fixed size.
        auxiliary_tasks: the tasks outside the world.
        at: when it was taken, on the coordinator's monotonic clock, as the times in it are.
        time: the same in seconds since 1970.
        failure: why the ranks could not meet.
        initialised: whether any task has called ``init()``.
        generation: that of the newest world; 0 before the first.
        members: the tasks of that world, in rank order.
        done: those of them that have completed the training of an elastic job, and have not failed since.
        trained: whether rank 0 is one of those: nothing has to be replaced.
        durations: the time (s) that the processes of the ended tasks ran.
        rules: how the job handles failures.
        min_size: the fewest ranks that a world may have.
        max_size: the most; None: there is no limit.
        pending: the generation that follows when all have come; 0: none.
        leaving: the tasks that have been asked to leave and have not ended, and why.
        leavers: the tasks that have left an elastic job gracefully, while the others train on, and why.
        changes: how the worlds of an elastic job after its first one came about.
        stalled: whether members still wait as they did when the last stall was told.
    """

    job: str
    tasks: tuple[TaskView, ...]
    auxiliary_tasks: tuple[TaskView, ...] = ()
    at: float = 0.0
    time: float = 0.0
    failure: RendezvousFailure | None = None
    initialised: bool = False
    generation: int = 0
    members: tuple[TaskKey, ...] = ()
    done: frozenset[TaskKey] = frozenset()
    trained: bool = False
    durations: Mapping[str, float] = field(default_factory=dict)
    rules: Rules = Rules()  # noqa: RUF009  it is frozen
    min_size: int = 0
    max_size: int | None = None
    pending: int = 0
    leaving: Mapping[str, str] = field(default_factory=dict)
    leavers: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[WorldChange, ...] = ()
    stalled: bool = False

    @property
    def all_tasks(self) -> tuple[TaskView, ...]:
        """The trainers, then the tasks outside the world."""
        return (*self.tasks, *self.auxiliary_tasks)

    def rank_of(self, view: TaskView) -> int | None:
        """The rank of a task; None outside the world."""
        in_world = view.task.is_trainer and (not self.members or view.task in self.members)
        return view.rank if in_world else None

    def calendar(self, moment: float) -> float:
        """The calendar's time of a moment on the coordinator's clock, in seconds since 1970."""
        return self.time - (self.at - moment)

    def without_output(self) -> JobSnapshot:
        """The same without the last output of ended tasks: a long job replaces hundreds, which is too much to send."""
        return replace(self, tasks=_silenced(self.tasks), auxiliary_tasks=_silenced(self.auxiliary_tasks))


def _silenced(views: tuple[TaskView, ...]) -> tuple[TaskView, ...]:
    return tuple(one if one.exit is None else replace(one, exit=replace(one.exit, stderr_tail=())) for one in views)
