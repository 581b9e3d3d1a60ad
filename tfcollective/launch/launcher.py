"""What a launcher is, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfcollective.control.service import JobView
from tfcollective.failures import ExitRecord, first_cause
from tfcollective.launch.plan.planner import Plan
from tfcollective.launch.plan.spec import JobSpec

__all__ = ["JobDescription", "JobManager", "JobOutcome", "Launcher", "AuxiliaryTaskEnd", "StartFailure"]


@dataclass(frozen=True)
class StartFailure:
    """The ranks could not meet: why, and whether the start timeout was the reason."""

    message: str
    timed_out: bool


@dataclass(frozen=True)
class AuxiliaryTaskEnd:
    """How a task outside the world ended.

    Attributes:
        task: its role, as text.
        exit: the record of its end, or None when no agent has reported it.
        info: what it has published: an evaluator its figures, TensorBoard its address.
        started: whether its process was started.
        lost: what happened to its agent, where that is why no agent has reported its end or why it was ended; or an
            empty text.
    """

    task: str
    exit: ExitRecord | None
    info: Mapping[str, object] = field(default_factory=dict)
    started: bool = True
    lost: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        exits: the records of the ranks that ended, in rank order.
        initialised: whether any rank called ``init()``.
        start_failure: why the ranks could not meet, or None.
        stopped_by: the signal that asked the launcher to stop, or None.
        agent_failure: what happened to an agent that did not do its work to the end, or None.
        agent_failed_at: until when that agent was known to work, on the clock of :attr:`ExitRecord.seen`.
        results: what function calls returned, pickled, by task.
        host_lost: whether ``agent_failure`` is a host that does not answer any more.
        places: host and slot, by task, for people; empty texts on this machine.
        auxiliary_tasks: what became of the tasks outside the world; their failures are none of the job's.
        published: what the ranks have published, by task: rank 0 its ``step`` and ``steps_per_second``.
        durations: how long (s) the processes ran, by task; those of auxiliary tasks, too.
        generation: of its last world; 0 when none came together.
        earlier: why it failed before it was started again, each time in one line.
        not_restarted: why it was not, or must not be, started again although it might have been; empty otherwise.
    """

    exits: tuple[ExitRecord, ...]
    initialised: bool
    start_failure: StartFailure | None = None
    stopped_by: int | None = None
    agent_failure: str | None = None
    agent_failed_at: float = 0.0
    results: Mapping[str, bytes] = field(default_factory=dict)
    host_lost: bool = False
    places: Mapping[str, str] = field(default_factory=dict)
    auxiliary_tasks: tuple[AuxiliaryTaskEnd, ...] = ()
    published: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    durations: Mapping[str, float] = field(default_factory=dict)
    generation: int = 0
    earlier: tuple[str, ...] = ()
    not_restarted: str = ""

    @property
    def cause(self) -> ExitRecord | None:
        """The end of the task that failed first; None when what happened to an agent came first, or no task failed.

        A host that is lost, or does not end in time, after a rank has reported a failure of its own is not the cause,
        even where nothing more is heard of the host's ranks. One whose last sign of life is older than that report is.
        """
        cause = first_cause(self.exits)
        if cause is None or self.agent_failure is None:
            return cause
        return cause if not cause.consequence and cause.seen <= self.agent_failed_at else None


class Launcher(ABC):
    """Runs jobs on one kind of platform. Found by name in the entry-point group ``tfcollective.launchers``.

    Attributes:
        can_restart: whether :meth:`run` can be called again for a job that failed.
        starts_mpi: whether its ranks are processes of MPI.
        observer: called with the state of the job every few seconds while it runs, where the launcher can; or None.
    """

    can_restart: bool = True
    starts_mpi: bool = False
    observer: Callable[[JobView], None] | None = None

    @abstractmethod
    def plan(self, spec: JobSpec) -> Plan:
        """What :meth:`run` would do; changes nothing."""

    @abstractmethod
    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """Runs the job to its end and leaves nothing behind.

        ``stop_signals`` are handled for that time: each asks the ranks to stop. They need the main thread. Raises
        LaunchError or ConfigError when the job could not be started; what happens to the ranks is in the outcome.
        """


@dataclass(frozen=True)
class JobDescription:
    """What a platform tells of one of its jobs.

    Attributes:
        facts: names and values, for people.
        status: what its coordinator says (see ``CoordinatorClient.status``), or None when it cannot be asked.
    """

    facts: Mapping[str, str]
    status: Mapping[str, object] | None = None


class JobManager(ABC):
    """A launcher whose jobs go on when the process that has submitted them is gone: they can be asked for by id."""

    @abstractmethod
    def owns(self, job: str) -> bool:
        """Whether ``job`` is written as this platform writes the ids of its jobs."""

    @abstractmethod
    def describe(self, job: str) -> JobDescription:
        """What is known of it; LaunchError when the platform does not know it or cannot be asked."""

    @abstractmethod
    def show_logs(self, job: str) -> int:
        """Prints all that its processes have printed; returns an exit code. Raises LaunchError."""

    @abstractmethod
    def kill(self, job: str) -> None:
        """Ends it, and returns when it has ended; nothing if it had. Raises LaunchError."""
