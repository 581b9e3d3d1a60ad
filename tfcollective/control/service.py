"""What the coordinator does for its job: answers requests out of membership and store, and keeps their times."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfcollective.clock import Clock
from tfcollective.codec import decode, encode
from tfcollective.control import blobs, messages
from tfcollective.control.liveness import LivenessTracker
from tfcollective.control.output_log import OutputLog, OutputPage
from tfcollective.control.protocol import NODES, PENDING, TRAINING_ENDED
from tfcollective.control.state import LeaveRequest, Membership, RendezvousFailure, TaskView, WorldChange
from tfcollective.control.store import Store
from tfcollective.control.wakeups import Wakeups
from tfcollective.failures import ExitRecord
from tfcollective.tasks import TaskKey
from tfcollective.timing import TIMING
from tfcollective.topology import World

_T = TypeVar("_T")
_MAX_OUTPUT_BYTES = 16 << 20
_GATHER_OUTPUT_S = 0.05  # from the first line on: a thousand nodes show lines every few milliseconds
# What requests wait for; besides, (_STORE, key) for a value and a Presence for the silence of a process.
_TIME, _ROUND, _ENDS, _OUTPUT, _STORE = "time", "round", "ends", "output", "store"


@dataclass(frozen=True)
class JobView:
    """What the coordinator knows of its job at one moment."""

    tasks: tuple[TaskView, ...]
    failure: RendezvousFailure | None
    initialised: bool
    auxiliary_tasks: tuple[TaskView, ...] = ()
    generation: int = 0
    durations: Mapping[TaskKey, float] = field(default_factory=dict)
    """How long (s) the processes of those that have ended ran."""
    members: tuple[TaskKey, ...] = ()
    """The tasks of the world of this generation, in rank order."""
    leavers: Mapping[TaskKey, str] = field(default_factory=dict)
    """Those that have left an elastic job in order, while the others train on, and why."""
    changes: tuple[WorldChange, ...] = ()
    """How the worlds of an elastic job after its first one came about."""
    done: frozenset[TaskKey] = frozenset()
    """The members that have completed the training of an elastic job, and have not failed since."""
    trained: bool = False
    """Whether rank 0 is one of them: nothing has to be replaced."""


class JobService:
    """The pure membership and store, and the requests that wait for them to change. A change wakes those that
    wait for it; signs of life are noted and wake none: their absence is looked for (:data:`Timing.watch`).

    Lives on the thread of one event loop; only its construction may happen elsewhere.

    Args:
        job_id: the name of the job.
        membership: its tasks.
        store: its values.
        clock: the time.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        on_silent: called with a task that is silent and for how many seconds it has been; again each time that the
            limit has passed once more; must not block.
        on_trained: called once when rank 0's process has ended; must not block.
        on_exited: called with the record of each process that has ended; must not block.
        on_dropped: called with a member that takes part no longer though its process may live, and why; must not block.
    """

    def __init__(
        self,
        job_id: str,
        membership: Membership,
        store: Store,
        clock: Clock,
        silence_limit: float = math.inf,
        on_silent: Callable[[TaskKey, float], None] | None = None,
        on_trained: Callable[[], None] | None = None,
        on_dropped: Callable[[TaskKey, str], None] | None = None,
        on_exited: Callable[[ExitRecord], None] | None = None,
    ) -> None:
        self._on_dropped = on_dropped
        self._on_exited = on_exited
        self._job_id = job_id
        self._membership = membership
        self._store = store
        self._clock = clock
        self._silence_limit = silence_limit
        self._on_silent = on_silent
        self._on_trained = on_trained
        self._wakeups = Wakeups()
        self._liveness = LivenessTracker[str](TIMING.longest_gap)  # of processes that are no tasks
        self._awaited: Counter[messages.Presence] = Counter()
        self._never_heard: set[str] = set()
        self._closing = False
        self._announced = 0  # the newest generation that members were asked to form
        self._round_reply: tuple[World | RendezvousFailure, bytes] | None = None
        self._began: dict[TaskKey, float] = {}
        self._durations: dict[TaskKey, float] = {}
        self._nodes: dict[str, int] = {}  # the token of each -> its number
        self._output = OutputLog(_MAX_OUTPUT_BYTES)
        self._gathers_output = False
        kinds: Mapping[type, Callable[[Any], Awaitable[object]]] = {
            messages.Join: self._join,
            messages.Beat: self._beat,
            messages.Alive: self._alive,
            messages.Leave: self._leave,
            messages.Done: self._done,
            messages.Failing: self._failing,
            messages.NodeLeaves: self._node_leaves,
            messages.FindLost: self._find_lost,
            messages.CountMembers: self._count_members,
            messages.Started: self._started,
            messages.Exited: self._exited,
            messages.Status: self._status,
            messages.ReadClock: self._read_clock,
            messages.Enroll: self._enroll,
            messages.Put: self._put,
            messages.Get: self._get,
            messages.Remove: self._remove,
            messages.Show: self._show,
            messages.ReadOutput: self._read_output,
        }
        self._handlers = {messages.path_of(kind): (kind, handler) for kind, handler in kinds.items()}

    def serves(self, path: str) -> bool:
        """Whether there are requests that go to ``path``."""
        return path in self._handlers

    async def answer(self, path: str, body: bytes) -> bytes:
        """The answer to a request to ``path``. Raises ConfigError when ``body`` is something else than that request,
        Refusal when it contradicts the state."""
        kind, handler = self._handlers[path]
        reply = await handler(decode(body, kind, "the body"))
        return reply if isinstance(reply, bytes) else encode(reply)

    def close(self) -> None:
        """Ends all waits: their answer is that the job has ended."""
        self._closing = True
        self._wakeups.wake_all()

    # ---- for the process that owns the coordinator -----------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it stands."""
        membership = self._membership
        generation = membership.world.generation if membership.world else 0
        return JobView(
            membership.views,
            membership.failure,
            membership.initialised,
            membership.side_views,
            generation,
            dict(self._durations),
            tuple(membership.members),
            membership.leavers,
            membership.changes,
            membership.done,
            membership.trained,
        )

    def exited(self, record: ExitRecord) -> None:
        """Notes the end of a task's process."""
        self._membership.exited(record, self._clock.monotonic())
        task = TaskKey.parse(record.task)
        if task in self._began:
            self._durations.setdefault(task, self._clock.monotonic() - self._began[task])
        if self._membership.training_ended and self._store.get(TRAINING_ENDED) is None:
            self.put(TRAINING_ENDED, True)
            if self._on_trained is not None:
                self._on_trained()
        self._wakeups.wake(_ROUND, _ENDS, _TIME)
        self._announce_change()
        if self._on_exited is not None:
            self._on_exited(record)

    def admit(self, task: TaskKey) -> None:
        """See :meth:`Membership.admit`."""
        self._membership.admit(task)

    def admit_no_more(self) -> None:
        """See :meth:`Membership.admit_no_more`."""
        self._membership.admit_no_more(self._clock.monotonic())
        self._wakeups.wake(_ROUND, _TIME)

    def put(self, key: str, value: object) -> int:
        """Stores a value for the tasks; returns its version."""
        version = self._store.put(key, value)
        self._wakeups.wake((_STORE, key))
        return version

    def segments(self, name: str) -> list[object] | None:
        """The segments of the bytes under ``name``, as they were stored; None if there are none."""
        count = self._store.get(blobs.count_key(name))
        if count is None or not isinstance(count.value, int):
            return None
        entries = [self._store.get(blobs.segment_key(name, index)) for index in range(count.value)]
        return [entry.value if entry is not None else None for entry in entries]

    # ---- time ------------------------------------------------------------------------------------------------------

    async def keep_time(self) -> None:
        """Does what is due when its time comes; sleeps until then, or until something is due sooner."""
        while not self._closing:
            await self._wakeups.wait((_TIME,), self._until_due())
            now = self._clock.monotonic()
            self._expire_round(now)
            for task, seconds in self._membership.find_silent(now, self._silence_limit).items():
                if self._on_silent is not None:
                    self._on_silent(task, seconds)
            self._announce_change()  # a newcomer may have been heard again
            self._wakeups.wake(*(one for one in self._awaited if self._is_silent(one)))

    def _until_due(self) -> float | None:
        """In how many seconds something is due; None: not yet."""
        judges = self._awaited or (self._silence_limit < math.inf and self._membership.expects_heartbeats)
        deadline = self._membership.deadline
        if deadline is None:
            return TIMING.watch if judges else None
        return min(TIMING.watch, max(0.0, deadline - self._clock.monotonic()))

    def _expire_round(self, now: float) -> None:
        before = (self._membership.failure, self._membership.world)
        for task, why in self._membership.expire(now).items():
            if self._on_dropped is not None:
                self._on_dropped(task, why)
        if (self._membership.failure, self._membership.world) != before:
            self._wakeups.wake(_ROUND)

    def _announce_change(self) -> None:
        """Tells the members that they are to come together, if that is new."""
        pending = self._membership.pending
        if pending > self._announced:
            self._announced = pending
            self.put(PENDING, pending)

    def _is_silent(self, presence: messages.Presence | None) -> bool:
        if presence is None:
            return False
        limit = presence.first if presence.name in self._never_heard else presence.limit
        return self._liveness.silence(presence.name, self._clock.monotonic()) >= limit

    async def _until(self, condition: Callable[[], _T | None], timeout: float, *topics: Hashable) -> _T | None:
        """The first value of ``condition`` that is not None, or None after ``timeout`` seconds or at the end.

        It is looked at when one of the topics changes.
        """
        deadline = self._clock.monotonic() + min(timeout, TIMING.longest_poll)
        while True:
            value = condition()
            remaining = deadline - self._clock.monotonic()
            if value is not None or remaining <= 0 or self._closing:
                return value
            await self._wakeups.wait(topics, remaining)

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _join(self, message: messages.Join) -> object:
        request, round_ends = message.request, self._membership.deadline
        if message.first and self._membership.trains_without(request.task):
            return messages.Joined(begun=True)
        self._membership.join(request, self._clock.monotonic(), message.lost)
        self._announce_change()
        if self._membership.deadline != round_ends or self._membership.outcome(request) is not None:
            # The round has begun or is over. What lies between wakes none, or n joins would wake n^2 times.
            self._wakeups.wake(_ROUND, _TIME)
        outcome: World | RendezvousFailure | LeaveRequest | None = await self._until(
            lambda: self._membership.outcome(request), message.timeout, _ROUND
        )
        if isinstance(outcome, LeaveRequest):
            return messages.Joined(leave=outcome.why)
        if outcome is not None:
            return self._reply_to_all(outcome)
        if self._closing:
            return messages.Joined(failure="the job has ended")
        missing = () if message.timeout > 0 else self._membership.missing
        return messages.Joined(missing=tuple(str(task) for task in missing))

    def _reply_to_all(self, outcome: World | RendezvousFailure) -> bytes:
        """What all that have joined get, made once."""
        if self._round_reply is None or self._round_reply[0] is not outcome:
            self._round_reply = (outcome, encode(_joined(outcome)))
        return self._round_reply[1]

    async def _beat(self, message: messages.Beat) -> messages.Nothing:
        self._heartbeat(message)
        return messages.Nothing()

    def _heartbeat(self, beat: messages.Beat) -> None:
        self._membership.heartbeat(beat.task, beat.activity, beat.info, self._clock.monotonic(), beat.said)

    async def _alive(self, message: messages.Alive) -> messages.Nothing:
        self._liveness.heard(message.name, self._clock.monotonic())
        self._never_heard.discard(message.name)
        for beat in message.beats:
            self._heartbeat(beat)
        return messages.Nothing()

    async def _leave(self, message: messages.Leave) -> messages.Nothing:
        self._membership.leave(message.task, self._clock.monotonic(), message.for_good, message.why, ends=message.ends)
        self._wakeups.wake(_ROUND, _TIME)
        self._announce_change()
        return messages.Nothing()

    async def _node_leaves(self, message: messages.NodeLeaves) -> messages.Nothing:
        self._membership.ask_to_leave(message.tasks, message.why, self._clock.monotonic())
        self._wakeups.wake(_ROUND, _TIME)
        self._announce_change()
        return messages.Nothing()

    async def _done(self, message: messages.Done) -> messages.Nothing:
        self._membership.done_training(message.task, self._clock.monotonic(), again=message.again)
        self._wakeups.wake(_ROUND, _TIME)
        self._announce_change()
        return messages.Nothing()

    async def _failing(self, message: messages.Failing) -> messages.Nothing:
        self._membership.failing(message.task, message.cause, self._clock.monotonic())
        self._wakeups.wake(_ROUND, _TIME)
        return messages.Nothing()

    async def _find_lost(self, message: messages.FindLost) -> messages.Lost:
        lost = await self._until(lambda: self._membership.lost_member(message.generation), message.timeout, _ENDS)
        return messages.Lost() if lost is None else messages.Lost(*lost)

    async def _count_members(self, message: messages.CountMembers) -> messages.Members:
        del message
        return messages.Members(len(self._membership.members))

    async def _started(self, message: messages.Started) -> messages.Nothing:
        self._membership.started(message.task, message.node, message.pid, message.host)
        self._began.setdefault(message.task, self._clock.monotonic())
        return messages.Nothing()

    async def _exited(self, message: messages.Exited) -> messages.Nothing:
        self.exited(message.record)
        return messages.Nothing()

    async def _put(self, message: messages.Put) -> messages.Stored:
        return messages.Stored(self.put(message.key, message.value))

    async def _get(self, message: messages.Get) -> messages.Found:
        def found() -> messages.Found | None:
            entry = self._store.newer(message.key, message.version)
            silent = entry is None and self._is_silent(message.presence)
            return messages.Found(entry, silent) if entry is not None or silent else None

        with self._awaiting(message.presence):
            topics: list[Hashable] = [(_STORE, message.key)]
            if message.presence is not None:
                topics.append(message.presence)
            return await self._until(found, message.timeout, *topics) or messages.Found()

    @contextlib.contextmanager
    def _awaiting(self, presence: messages.Presence | None) -> Iterator[None]:
        """While it is open, the silence of this process wakes those that wait for the topic ``presence``."""
        if presence is None:
            yield
            return
        if presence.name not in self._liveness:
            self._liveness.heard(presence.name, self._clock.monotonic())
            self._never_heard.add(presence.name)
        self._awaited[presence] += 1
        if len(self._awaited) == 1:
            self._wakeups.wake(_TIME)  # there is something to look for; later waits are looked at in their turn
        try:
            yield
        finally:
            self._awaited[presence] -= 1
            if not self._awaited[presence]:
                del self._awaited[presence]

    async def _remove(self, message: messages.Remove) -> messages.Nothing:
        """Forgets the bytes under a name: the number of their segments first, so that no reader finds half of them."""
        count = len(self.segments(message.name) or ())
        self._store.remove(blobs.count_key(message.name))
        for index in range(count):
            self._store.remove(blobs.segment_key(message.name, index))
        return messages.Nothing()

    async def _enroll(self, message: messages.Enroll) -> messages.Enrolled:
        if message.token not in self._nodes:
            self._nodes[message.token] = self._store.append(NODES, message.facts)
            self._wakeups.wake((_STORE, NODES))
        return messages.Enrolled(self._nodes[message.token])

    async def _show(self, message: messages.Show) -> messages.Nothing:
        self._output.add(message.piece)
        if not self._gathers_output:
            self._gathers_output = True
            asyncio.get_running_loop().call_later(_GATHER_OUTPUT_S, self._hand_on_output)
        return messages.Nothing()

    def _hand_on_output(self) -> None:
        self._gathers_output = False
        self._wakeups.wake(_OUTPUT)

    async def _read_output(self, message: messages.ReadOutput) -> OutputPage:
        position = message.position
        page = await self._until(lambda: self._output.since(position), message.timeout, _OUTPUT)
        return page or OutputPage((), position, 0)

    async def _read_clock(self, message: messages.ReadClock) -> messages.Time:
        del message
        return messages.Time(int(self._clock.monotonic() * 1e9))

    async def _status(self, message: messages.Status) -> object:
        del message
        membership, now = self._membership, self._clock.monotonic()
        members = set(membership.members) if membership.bounds.replaces else ()  # others of an elastic job have no rank
        return {
            "job": self._job_id,
            "generation": membership.world.generation if membership.world else 0,
            "failure": membership.failure.message if membership.failure else None,
            "tasks": [
                _describe(view, now, ranked=view.task in members or not members)
                for view in (*membership.views, *membership.side_views)
            ],
            "elastic": self._elastic_status(now) if membership.bounds.replaces else None,
        }

    def _elastic_status(self, now: float) -> Mapping[str, object]:
        """How the world of an elastic job has changed, and what it waits for."""
        membership, wall = self._membership, self._clock.wall()
        return {
            "size": len(membership.members),
            "min_size": membership.bounds.smallest,
            "max_size": membership.bounds.largest,
            "pending": membership.pending or None,
            "leaving": {str(task): why for task, why in membership.leaving.items()},
            "left": {str(task): why for task, why in membership.leavers.items()},
            "changes": [
                {
                    "generation": change.generation,
                    "size": change.size,
                    "without": [str(task) for task in change.lost],
                    "with": [str(task) for task in change.joined],
                    "cause": change.cause,
                    "seconds": round(change.seconds, 6),
                    "phases": {name: round(value, 6) for name, value in change.phases.items()},
                    "time": round(wall - (now - change.at), 3),
                }
                for change in membership.changes
            ],
        }


def _joined(outcome: World | RendezvousFailure) -> messages.Joined:
    if isinstance(outcome, World):
        return messages.Joined(messages.pack_world(outcome))
    return messages.Joined(failure=outcome.message, missing=outcome.missing, over=outcome.over)


def _describe(view: TaskView, now: float, *, ranked: bool) -> Mapping[str, object]:
    age = None if view.last_heartbeat is None else round(now - view.last_heartbeat, 3)
    return {
        "task": str(view.task),
        "rank": view.rank if view.task.is_trainer and ranked else None,
        "state": view.state.value,
        "activity": view.activity,
        "node": view.node,
        "host": view.host,
        "pid": view.pid,
        "heartbeat_age_s": age,
        "info": dict(view.info),
        "exit": view.exit,
    }
