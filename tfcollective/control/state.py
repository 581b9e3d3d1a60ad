"""The membership of a job: a pure state machine. It takes the time as an argument and does no I/O.

The rule: no task gets the world until all have joined. A *round* gathers all trainers and ends in a
:class:`~tfcollective.topology.World` of the next generation, or in a :class:`RendezvousFailure` that all who wait
receive. The first join of a round starts its clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from tfcollective.control.liveness import LivenessTracker
from tfcollective.errors import ConfigError
from tfcollective.failures import ExitRecord, first_cause
from tfcollective.settings import variable
from tfcollective.tasks import NO_RANK, TaskKey, trainers
from tfcollective.timing import TIMING
from tfcollective.topology import Member, World


class TaskState(str, Enum):
    """What the coordinator knows of a task."""

    EXPECTED = "expected"  # nothing has been heard of it
    STARTED = "started"  # its process runs
    WAITING = "waiting"  # in init(), waits for the others
    RUNNING = "running"  # a member of the world
    LEFT = "left"  # left the world in order
    EXITED = "exited"  # its process ended with code 0
    FAILED = "failed"  # its process ended otherwise


class Refusal(Exception):  # noqa: N818  an answer, not a fault of this process
    """A request that contradicts the state; the text says how."""


@dataclass(frozen=True)
class JoinRequest:
    """A task that wants to be in the world. ``address`` is opaque; ``size`` is the world that it believes in."""

    task: TaskKey
    size: int
    node: str
    pid: int
    address: str


@dataclass(frozen=True)
class RendezvousFailure:
    """Why a round ended without a world.

    Attributes:
        message: for the user.
        missing: the tasks that had not joined.
        timed_out: whether the start timeout was the reason.
    """

    message: str
    missing: tuple[str, ...]
    timed_out: bool


@dataclass(frozen=True)
class TaskView:
    """What is known of one task; ``info`` is what its newest heartbeat says, and ``said`` when that was given on the
    monotonic clock of its host.

    An auxiliary task has no rank (``NO_RANK``).
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
        """Whether its process is gone."""
        return self.state in (TaskState.EXITED, TaskState.FAILED)


class Membership:
    """The tasks of one job and the world that they form. Not thread-safe.

    Auxiliary tasks are known, too: they are started, beat and end, but no round waits for them.
    """

    def __init__(
        self,
        tasks: Sequence[TaskKey],
        start_timeout: float,
        auxiliary_tasks: Sequence[TaskKey] = (),
        first_generation: int = 1,
        longest_gap: float = TIMING.longest_gap,
    ) -> None:
        ordered = trainers(tasks)
        if not ordered or len(set(ordered)) != len(tasks):
            raise ConfigError("a job needs trainers, each once")
        self._views = {task: TaskView(task, rank) for rank, task in enumerate(ordered)}
        self._side_views = {task: TaskView(task, NO_RANK) for task in auxiliary_tasks}
        self._start_timeout = start_timeout
        self._generation = first_generation - 1
        self._waiting: dict[TaskKey, JoinRequest] = {}
        self._deadline: float | None = None
        self._failure: RendezvousFailure | None = None
        self._world: World | None = None
        self._ended: set[TaskKey] = set()  # the trainers whose process is gone
        self._liveness = LivenessTracker[TaskKey](longest_gap)

    @property
    def world(self) -> World | None:
        """The world of the current generation; None before the first."""
        return self._world

    @property
    def failure(self) -> RendezvousFailure | None:
        """Why the ranks could not meet; stays once set."""
        return self._failure

    @property
    def deadline(self) -> float | None:
        """When :meth:`expire` has to be called, or None."""
        return self._deadline

    @property
    def views(self) -> tuple[TaskView, ...]:
        """All tasks in rank order."""
        return tuple(self._views.values())

    @property
    def side_views(self) -> tuple[TaskView, ...]:
        """The auxiliary tasks."""
        return tuple(self._side_views.values())

    @property
    def training_ended(self) -> bool:
        """Whether rank 0's process has ended: no checkpoint will follow."""
        return next(iter(self._views.values())).ended

    @property
    def missing(self) -> tuple[TaskKey, ...]:
        """The tasks that the current round waits for, in rank order."""
        return tuple(task for task in self._views if task not in self._waiting)

    @property
    def expects_heartbeats(self) -> bool:
        """Whether :meth:`find_silent` may find some, now or later."""
        return bool(self._liveness)

    @property
    def initialised(self) -> bool:
        """Whether any task has ever joined."""
        return self._world is not None or bool(self._waiting) or self._failure is not None

    def started(self, task: TaskKey, node: str, pid: int, host: str = "") -> None:
        """An agent has started the task's process, which may have joined before the agent's report came."""
        view = replace(self._known(task), host=host)
        if view.state is TaskState.EXPECTED:
            view = replace(view, state=TaskState.STARTED, node=node, pid=pid)
        self._keep(view)

    def join(self, request: JoinRequest, now: float) -> None:
        """Adds a task to the round; repeating the same request changes nothing. Raises Refusal."""
        view = self._known(request.task)
        if request.task in self._side_views:
            raise Refusal(f"{request.task} is outside the world: it cannot join")
        self._check_size(request)
        if self._failure is not None or self._is_member(request):
            return
        earlier = self._waiting.get(request.task)
        if earlier == request:
            return
        if earlier is not None or view.state is TaskState.RUNNING:
            raise Refusal(
                f"{request.task} has joined already: process {view.pid} on node {view.node}. Two processes have the "
                f"same task, or two jobs meet at this address: then give each job a {variable('job_id')} and a "
                f"{variable('rendezvous')}=HOST:PORT of its own, the same on all its ranks"
            )
        self._waiting[request.task] = request
        here = replace(view, node=request.node, pid=request.pid, last_heartbeat=now, said=0.0, exit=None)
        self._keep(replace(here, state=TaskState.WAITING))
        if self._deadline is None:
            self._deadline = now + self._start_timeout
        self._settle(now)

    def outcome(self, request: JoinRequest) -> World | RendezvousFailure | None:
        """What a join has come to; None while it waits."""
        if self._is_member(request):
            return self._world
        return self._failure

    def heartbeat(
        self, task: TaskKey, activity: str, info: Mapping[str, object], now: float, said: float = 0.0
    ) -> None:
        """A sign of life, with what the rank does and counts; ``said``: when, on the monotonic clock of its host. One
        that was given before the newest one changes nothing: it has come by a longer way."""
        view = self._known(task)
        if said < view.said:
            return
        # A member of the world runs when the world has formed, an auxiliary task as soon as it says anything.
        state = TaskState.RUNNING if view.rank == NO_RANK and not view.ended else view.state
        # The commonest request: replace() and a key that is equal but not the same would double its cost.
        task, views = view.task, self._side_views if view.rank == NO_RANK else self._views
        kept = view.exit, view.host
        views[task] = TaskView(task, view.rank, state, view.node, view.pid, now, activity, info, said, *kept)
        if task in self._liveness:
            self._liveness.heard(task, now)

    def find_silent(self, now: float, limit: float) -> Mapping[TaskKey, float]:
        """The members of the world that have given no heartbeat for ``limit`` seconds or longer, and for how long.

        Those that stay silent are found again after ``limit`` seconds: one that was busy may be stopped by then.
        """
        silent = self._liveness.silent(limit, now)
        for task in silent:
            self._liveness.heard(task, now)
        return {task: now - heard for task in silent if (heard := self._views[task].last_heartbeat) is not None}

    def leave(self, task: TaskKey, now: float) -> None:
        """The task leaves the world in order; it may join the next round."""
        view = self._known(task)
        if view.state is TaskState.RUNNING:
            self._keep(replace(view, state=TaskState.LEFT, last_heartbeat=now))
            self._liveness.forget(task)

    def exited(self, record: ExitRecord, now: float) -> None:
        """An agent has seen the end of the task's process. Fails the round if that needs the task."""
        task = TaskKey.parse(record.task)
        view = self._known(task)
        if view.ended:
            return
        self._liveness.forget(task)
        state = TaskState.FAILED if record.failed else TaskState.EXITED
        self._keep(replace(view, state=state, node=record.node, pid=record.pid, exit=replace(record, seen=now)))
        self._settle(now)

    def lost_member(self, generation: int) -> tuple[int, str] | None:
        """A member of the world of that generation whose process has ended: its rank, and what happened in words. Where
        several have, the one whose failure brought about the others'."""
        if self._world is None or self._world.generation != generation:
            return None
        if not self._ended:
            return None
        ended = sorted((self._views[task] for task in self._ended), key=lambda view: view.rank)
        view = self._first_to_end(ended)
        how = "ended" if view.exit is None else view.exit.how
        return view.rank, f"rank {view.rank} ({view.task}, pid {view.pid}) {how}"

    def _first_to_end(self, ended: Sequence[TaskView]) -> TaskView:
        """The task whose failure came first; where all failures are consequences, one that has left in order."""
        cause = first_cause(view.exit for view in ended if view.exit is not None)
        well = [view for view in ended if view.state is TaskState.EXITED]
        if cause is None or (cause.consequence and well):
            return well[0]
        return self._known(TaskKey.parse(cause.task))

    def expire(self, now: float) -> None:
        """Fails the round when its time is over."""
        if self._deadline is None or now < self._deadline:
            return
        names = _names(self.missing)
        count = f"{len(self._waiting)} of {len(self._views)} tasks joined within {self._start_timeout:g} s"
        self._fail(f"{count}; missing: {', '.join(names)}", names, timed_out=True)

    def _known(self, task: TaskKey) -> TaskView:
        view = self._views.get(task) or self._side_views.get(task)
        if view is None:
            raise Refusal(f"this job has no task {task}")
        return view

    def _keep(self, view: TaskView) -> None:
        if view.task in self._side_views:
            self._side_views[view.task] = view
            return
        self._views[view.task] = view
        if view.ended:
            self._ended.add(view.task)
        else:
            self._ended.discard(view.task)

    def _check_size(self, request: JoinRequest) -> None:
        if request.size != len(self._views):
            raise Refusal(f"{request.task} believes in a world of {request.size}, this job has {len(self._views)}")

    def _is_member(self, request: JoinRequest) -> bool:
        view = self._views[request.task]
        if self._world is None or view.state is not TaskState.RUNNING:
            return False
        member = self._world.members[view.rank]
        return (member.node, member.pid, member.address) == (request.node, request.pid, request.address)

    def _settle(self, now: float) -> None:
        """Ends the round if it can be decided. Every join asks: tasks are counted, not looked through."""
        if not self._waiting or self._failure is not None:
            return
        if self._ended:
            first = min((self._views[task] for task in self._ended), key=lambda view: view.rank)
            self._fail(self._describe_gone(first), _names(self.missing), timed_out=False)
        elif len(self._waiting) == len(self._views):
            self._form_world(now)

    def _describe_gone(self, view: TaskView) -> str:
        how = view.exit.how if view.exit is not None else "ended"
        when = "while it waited for the others" if view.task in self._waiting else "before it called init()"
        return f"{view.task} (rank {view.rank}, pid {view.pid}) {how} {when}"

    def _fail(self, message: str, missing: tuple[str, ...], *, timed_out: bool) -> None:
        self._failure = RendezvousFailure(message, missing, timed_out)
        self._deadline = None

    def _form_world(self, now: float) -> None:
        self._generation += 1
        requests = [self._waiting[task] for task in self._views]
        members = [
            Member(request.task, rank, request.node, request.pid, request.address)
            for rank, request in enumerate(requests)
        ]
        self._world = World(self._generation, tuple(members))
        for task, view in self._views.items():
            self._keep(replace(view, state=TaskState.RUNNING, last_heartbeat=now))
            self._liveness.heard(task, now)
        self._waiting.clear()
        self._deadline = None


def _names(tasks: Sequence[TaskKey]) -> tuple[str, ...]:
    return tuple(str(task) for task in tasks)
