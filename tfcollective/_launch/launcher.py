"""The interface of a launcher, its result, and how a launcher is found by its name."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

from tfcollective._base.errors import ConfigError, LaunchError, TfCollectiveError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.options import Options
from tfcollective._base.verdict import Rules, Standing, Verdict, verdict
from tfcollective._control.snapshot import JobSnapshot, WorldChange
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.planner import Plan, describe
from tfcollective._launch.plan.spec import JobSpec


@dataclass(frozen=True)
class StartFailure:
    """The ranks could not meet.

    Attributes:
        message: why.
        timed_out: whether the start timeout was the reason.
        met: whether they had met before: an elastic job could not go on.
    """

    message: str
    timed_out: bool
    met: bool = False

    def __str__(self) -> str:
        return f"{'training could not continue' if self.met else 'the ranks could not meet'}: {self.message}"


@dataclass(frozen=True)
class AuxiliaryTaskEnd:
    """The end of a task outside the world.

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
    """The outcome of a job.

    Attributes:
        exits: the records of the ranks that ended, in rank order; without those that an elastic job has outlasted.
        survived: those.
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
        changes: how the worlds of an elastic job after its first one came about.
        not_restarted: why it was not, or must not be, started again although it might have been; empty otherwise.
        stalled: lines that show for which ranks others waited until the end, and where those were.
        reported: the exit code of a launcher to which the job was handed over, and which has reported its end; None:
            there was none.
    """

    exits: tuple[ExitRecord, ...]
    initialised: bool
    survived: tuple[ExitRecord, ...] = ()
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
    changes: tuple[WorldChange, ...] = ()
    stalled: tuple[str, ...] = ()
    reported: int | None = None

    @property
    def cause(self) -> ExitRecord | None:
        """The end of the task that failed first; None if the loss of an agent came first, or no task failed."""
        return self.judge().cause

    def judge(self, restarts: int = 0) -> Verdict:
        """Returns the verdict on the ends that the job has not outlasted. ``restarts``: how many are left."""
        standing = Standing(
            met=self.initialised,
            broken=self.start_failure is not None,
            ended=True,
            node_lived_until=None if self.agent_failure is None else self.agent_failed_at,
        )
        return verdict(self.exits, standing, Rules(restarts=restarts))


@dataclass(frozen=True)
class Capabilities:
    """A platform's capabilities, for people: a few words on each, or none if it lacks one.

    Attributes:
        start: what starts the agents, and where.
        logs: where the ranks' output is.
        gpus: how a rank gets its GPUs.
        elastic: how ranks come and go while a job with ``min_proc`` runs.
        preemption: what tells ranks that they have to leave.
        restart: how a job starts again (``max_restarts``).
        secrets: how the job key reaches the agents.
        evaluator: where auxiliary tasks, an evaluator or TensorBoard, run.
    """

    start: str
    logs: str
    gpus: str
    elastic: str
    preemption: str
    restart: str
    secrets: str
    evaluator: str


class Launcher(ABC):
    """Runs jobs on one kind of platform. Found by name in the entry-point group ``tfcollective.launchers``.

    Attributes:
        can_restart: whether :meth:`run` can be called again for a job that failed.
        delegates: whether :meth:`run` hands the job to another launcher, which starts it again when it fails, and
            reports: its outcome is final.
        starts_mpi: whether its ranks are processes of MPI.
        observers: each is called with a snapshot of the job every second while it runs, where the launcher can, on a
            thread of the launcher's; they must not block.
        observable: whether it can: the coordinator is in this process.
        capabilities: a row of docs/platforms.md; None: a launcher that does not say.
        options: what it takes besides the options of every job: it reads them from ``JobSpec.platform``.
        else_ranks: how a job can do without a given number of ranks, as the end of the error that asks for it.
    """

    capabilities: ClassVar[Capabilities | None] = None
    options: ClassVar[type[Options]] = Options
    else_ranks: ClassVar[str] = ", or hosts with slots: -H host1:4"

    can_restart: bool = True
    delegates: bool = False
    starts_mpi: bool = False
    observable: bool = True
    observers: tuple[Callable[[JobSnapshot], None], ...] = ()

    @contextmanager
    def observed_by(self, observer: Callable[[JobSnapshot], None]) -> Iterator[None]:
        """Adds an observer while the context is open."""
        before = self.observers
        self.observers = (*before, observer)
        try:
            yield
        finally:
            self.observers = before

    def granted_hosts(self) -> tuple[Host, ...]:
        """The hosts that the platform has given to this process already: those of a job that names none."""
        return ()

    def preview(self, spec: JobSpec) -> str:
        """Describes what :meth:`run` would do; changes nothing."""
        return describe(self.plan(spec))

    @abstractmethod
    def plan(self, spec: JobSpec) -> Plan:
        """Returns the plan that :meth:`run` would carry out; changes nothing."""

    @abstractmethod
    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """Runs the job to its end and leaves nothing behind.

        ``stop_signals`` are handled for that time: each asks the ranks to stop, but SIGUSR1 and SIGUSR2, which are
        passed on to the ranks that handle them. They need the main thread. Raises LaunchError or ConfigError when the
        job could not be started; what happens to the ranks is in the outcome.
        """

    def close(self) -> None:  # noqa: B027  most have nothing
        """Releases what the restarts of a job share; called after the last :meth:`run`."""


@dataclass(frozen=True)
class JobDescription:
    """A platform's description of one of its jobs.

    Attributes:
        facts: names and values, for people.
        status: what its coordinator says, or None when it cannot be asked.
    """

    facts: Mapping[str, str]
    status: JobSnapshot | None = None


class JobManager(ABC):
    """A launcher whose jobs continue after the process that submitted them is gone, and can be asked for by id."""

    @abstractmethod
    def owns(self, job: str) -> bool:
        """True if ``job`` has the form of this platform's job ids."""

    @abstractmethod
    def describe(self, job: str) -> JobDescription:
        """Describes the job; raises LaunchError if the platform does not know it or cannot be asked."""

    @abstractmethod
    def show_logs(self, job: str) -> int:
        """Prints all that its processes have printed; returns an exit code. Raises LaunchError."""

    @abstractmethod
    def kill(self, job: str) -> None:
        """Ends it, and returns when it has ended; nothing if it had. Raises LaunchError."""


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``remedy`` is there when it failed, or is a note: it passed, with a drawback."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    noted: bool = False

    @classmethod
    def note(cls, name: str, detail: str, remedy: str) -> Finding:
        """Returns a finding for something that works, but slower or not everywhere."""
        return cls(name, True, detail, remedy, noted=True)

    @classmethod
    def of(cls, name: str, look: Callable[[], str], remedy: str) -> Finding:
        """Returns a finding whose detail is the result of ``look``, or the TfCollectiveError that it raises."""
        try:
            return cls(name, True, look())
        except TfCollectiveError as error:
            return cls(name, False, str(error), remedy)

    @staticmethod
    def until_one_fails(steps: Iterable[Callable[[], Finding]]) -> Iterator[Finding]:
        """Yields one finding after the other, up to the first that failed: later steps could not work."""
        for step in steps:
            finding = step()
            yield finding
            if not finding.ok:
                return


class CheckedLauncher(ABC):
    """A launcher whose platform can be looked at before a job is given to it."""

    @abstractmethod
    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """Looks at one thing after the other, as a job with these platform settings would need it; may run a small job.

        Ends early when what comes next cannot work. Raises ConfigError for settings that cannot be used.
        """


class ManifestLauncher(ABC):
    """A launcher that can describe a job for its platform's own tools, instead of running it."""

    @abstractmethod
    def manifest(self, spec: JobSpec, typed: Sequence[str] = ()) -> str:
        """The description, as text: the same arguments give the same text, and no key is in it.

        Args:
            spec: the job; its command is what runs on the platform.
            typed: the whole command line, for a comment.

        Raises:
            ConfigError, UnsupportedError: what the platform would refuse.
        """


GROUP = "tfcollective.launchers"
_PACKAGES = ("tfcollective", "tfcollective_launchers")
_BUILT_IN = {
    "agents": "tfcollective._launch.platforms.join:JoinedLauncher",
    "local": "tfcollective._launch.platforms.local:LocalLauncher",
}


def find_launcher(name: str) -> Launcher:
    """The launcher called ``name``; ConfigError lists the known ones, LaunchError says why it cannot be loaded."""
    known = _known()
    point = known.get(name)
    if point is None:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown launcher {name!r}: expected one of {', '.join(sorted(known))}{meant}")
    try:
        launcher = point.load()()
    except Exception as error:  # another package may raise anything, and must not stop jobs of other launchers
        raise LaunchError(f"the launcher {name!r} cannot be loaded: {error}") from error
    if not isinstance(launcher, Launcher):
        raise LaunchError(f"the launcher {name!r} ({point.value}) is no tfcollective launcher")
    return launcher


def find_manager(job: str) -> JobManager:
    """The launcher that has a job of this id; ConfigError when there is none."""
    for name in sorted(_known()):
        launcher = find_launcher(name)
        if isinstance(launcher, JobManager) and launcher.owns(job):
            return launcher
    raise ConfigError(
        f"{job!r} is no job that runs on this machine (`tfcollective status` lists those), nor one of a platform that "
        "keeps jobs: YARN's are called application_NUMBER_NUMBER, SLURM's have numbers, Kubernetes' are NAMESPACE/NAME"
    )


def known_launchers() -> tuple[str, ...]:
    """The names that :func:`find_launcher` knows."""
    return tuple(sorted(_known()))


def options_by_launcher() -> dict[str, type[Options]]:
    """Returns the options of each launcher that can be loaded, ours first; :func:`find_launcher` says why others
    cannot."""
    found = {}
    for name in sorted(known_launchers(), key=lambda name: not _is_ours(_known()[name])):
        with suppress(LaunchError):
            found[name] = find_launcher(name).options
    return found


def table_of_platforms() -> str:
    """Returns the capabilities of our own launchers' platforms, as a table in Markdown.

    Raises LaunchError when one cannot be loaded.
    """
    ours = [name for name, point in sorted(_known().items()) if _is_ours(point)]
    rows = [(name, find_launcher(name).capabilities) for name in ours]
    titles = [field.name for field in fields(Capabilities)]
    lines = ["| | " + " | ".join("GPUs" if title == "gpus" else title for title in titles) + " |"]
    lines.append("|---|" + "---|" * len(titles))
    for name, said in rows:
        if said is not None:
            lines.append(f"| `{name}` | " + " | ".join(getattr(said, title) or "-" for title in titles) + " |")
    return "\n".join(lines) + "\n"


def _is_ours(point: EntryPoint) -> bool:
    return point.module.partition(".")[0] in _PACKAGES


def _known() -> dict[str, EntryPoint]:
    known = {point.name: point for point in entry_points(group=GROUP)}
    known.update({built_in: EntryPoint(built_in, target, GROUP) for built_in, target in _BUILT_IN.items()})
    return known
