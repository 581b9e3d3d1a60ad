"""What the coordinator does for its job: answers requests out of membership and store, and keeps their times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfcollective.clock import Clock
from tfcollective.codec import decode, encode
from tfcollective.control import blobs
from tfcollective.control.messages import (
    Enroll,
    Enrolled,
    Exited,
    FindLost,
    Get,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Lost,
    Nothing,
    Put,
    ReadClock,
    ReadOutput,
    Remove,
    Show,
    Started,
    Status,
    Stored,
    Time,
    path_of,
)
from tfcollective.control.output_log import OutputLog, OutputPage
from tfcollective.control.protocol import NODES, TRAINING_ENDED
from tfcollective.control.state import Membership, RendezvousFailure, TaskView
from tfcollective.control.store import Entry, Store
from tfcollective.failures import ExitRecord
from tfcollective.tasks import TaskKey
from tfcollective.topology import World

__all__ = ["JobService", "JobView"]

_T = TypeVar("_T")
_MAX_POLL_S = 30.0
_LATE_S = 2.0
_CATCH_UP_S = 5.0
_MAX_OUTPUT_BYTES = 16 << 20


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


class JobService:
    """The pure membership and store, and the requests that wait for them to change.

    Lives on the thread of one event loop; only its construction may happen elsewhere.

    Args:
        job_id: the name of the job.
        membership: its tasks.
        store: its values.
        clock: the time.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        on_silent: called once for a task that has become silent; must not block.
        on_trained: called once when rank 0's process has ended; must not block.
    """

    def __init__(
        self,
        job_id: str,
        membership: Membership,
        store: Store,
        clock: Clock,
        silence_limit: float = math.inf,
        on_silent: Callable[[TaskKey], None] | None = None,
        on_trained: Callable[[], None] | None = None,
    ) -> None:
        self._job_id = job_id
        self._membership = membership
        self._store = store
        self._clock = clock
        self._silence_limit = silence_limit
        self._on_silent = on_silent
        self._on_trained = on_trained
        self._changed = asyncio.Event()
        self._put_to: dict[str, asyncio.Event] = {}  # one for each key that is waited for: a put wakes no others
        self._shown = asyncio.Event()  # one of its own: output comes often, and most who wait do not wait for it
        self._closing = False
        self._told: tuple[World, bytes] | None = None
        self._began: dict[TaskKey, float] = {}
        self._durations: dict[TaskKey, float] = {}
        self._nodes: dict[str, Mapping[str, object]] = {}
        self._output = OutputLog(_MAX_OUTPUT_BYTES)
        kinds: Mapping[type, Callable[[Any], Awaitable[object]]] = {
            Join: self._join,
            Heartbeat: self._heartbeat,
            Leave: self._leave,
            FindLost: self._find_lost,
            Started: self._started,
            Exited: self._exited,
            Status: self._status,
            ReadClock: self._read_clock,
            Enroll: self._enroll,
            Put: self._put,
            Get: self._get,
            Remove: self._remove,
            Show: self._show,
            ReadOutput: self._read_output,
        }
        self._handlers = {path_of(kind): (kind, handler) for kind, handler in kinds.items()}

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
        """Ends all waits; those who wait hear that the job has ended."""
        self._closing = True
        self._notify()
        for key in tuple(self._put_to):
            self._notify_of(key)
        self._notify_readers()

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
        self._notify()

    def put(self, key: str, value: object) -> int:
        """Stores a value for the tasks; returns its version."""
        version = self._store.put(key, value)
        self._notify_of(key)
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
        """Does what is due when its time comes; sleeps until then, or until something changes."""
        while not self._closing:
            due = self._next_due()
            now = self._clock.monotonic()
            await _wait(self._changed, None if due == math.inf else max(0.0, due - now))
            if self._clock.monotonic() - max(due, now) > _LATE_S:
                # This process was stopped for a while: first hear what was said meanwhile.
                await asyncio.sleep(_CATCH_UP_S)
            self._expire_round()
            for task in self._membership.find_silent(self._clock.monotonic(), self._silence_limit):
                if self._on_silent is not None:
                    self._on_silent(task)

    def _next_due(self) -> float:
        round_ends = self._membership.deadline
        silence = None
        if self._silence_limit < math.inf:
            silence = self._membership.next_silence(self._silence_limit)
        return min(math.inf if moment is None else moment for moment in (round_ends, silence))

    def _expire_round(self) -> None:
        before = self._membership.failure
        self._membership.expire(self._clock.monotonic())
        if self._membership.failure is not before:
            self._notify()

    def _notify(self) -> None:
        """Wakes every request that waits for the world; each looks whether its own condition holds."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _notify_of(self, key: str) -> None:
        """Wakes those who wait for this key."""
        event = self._put_to.pop(key, None)
        if event is not None:
            event.set()

    def _notify_readers(self) -> None:
        """The same for those who wait for output."""
        self._shown.set()
        self._shown = asyncio.Event()

    async def _until(
        self, condition: Callable[[], _T | None], timeout: float, event: Callable[[], asyncio.Event] | None = None
    ) -> _T | None:
        """The first value of ``condition`` that is not None, or None after ``timeout`` seconds or at the end.

        ``event`` is what says that it may have changed, by default what :meth:`_notify` sets.
        """
        deadline = self._clock.monotonic() + min(timeout, _MAX_POLL_S)
        while True:
            value = condition()
            remaining = deadline - self._clock.monotonic()
            if value is not None or remaining <= 0 or self._closing:
                return value
            await _wait(self._changed if event is None else event(), remaining)

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _join(self, message: Join) -> object:
        request, round_ends = message.request, self._membership.deadline
        self._membership.join(request, self._clock.monotonic())
        if self._membership.deadline != round_ends or self._membership.outcome(request) is not None:
            self._notify()  # the round has begun or is over: what lies between wakes nobody, or n joins wake n^2 times
        outcome = await self._until(lambda: self._membership.outcome(request), message.timeout)
        if isinstance(outcome, World):
            return self._tell_world(outcome)
        if isinstance(outcome, RendezvousFailure):
            return Joined(failure=outcome.message, missing=outcome.missing)
        if self._closing:
            return Joined(failure="the job has ended")
        return Joined(missing=tuple(str(task) for task in self._membership.missing))

    def _tell_world(self, world: World) -> bytes:
        """The same reply for all its members, made once."""
        if self._told is None or self._told[0] is not world:
            self._told = (world, encode(Joined(world)))
        return self._told[1]

    async def _heartbeat(self, beat: Heartbeat) -> Nothing:
        self._membership.heartbeat(beat.task, beat.activity, beat.info, self._clock.monotonic())
        return Nothing()

    async def _leave(self, message: Leave) -> Nothing:
        self._membership.leave(message.task, self._clock.monotonic())
        self._notify()
        return Nothing()

    async def _find_lost(self, message: FindLost) -> Lost:
        lost = await self._until(lambda: self._membership.lost_member(message.generation), message.timeout)
        return Lost() if lost is None else Lost(*lost)

    async def _started(self, message: Started) -> Nothing:
        self._membership.started(message.task, message.node, message.pid)
        self._began.setdefault(message.task, self._clock.monotonic())
        return Nothing()

    async def _exited(self, message: Exited) -> Nothing:
        self.exited(message.record)
        return Nothing()

    async def _put(self, message: Put) -> Stored:
        return Stored(self.put(message.key, message.value))

    async def _get(self, message: Get) -> Entry:
        entry = await self._until(
            lambda: self._store.newer(message.key, message.version),
            message.timeout,
            lambda: self._put_to.setdefault(message.key, asyncio.Event()),
        )
        return entry or Entry(None, 0)

    async def _remove(self, message: Remove) -> Nothing:
        """Forgets the bytes under a name: the number of their segments first, so that no reader finds half of them."""
        count = len(self.segments(message.name) or ())
        self._store.remove(blobs.count_key(message.name))
        for index in range(count):
            self._store.remove(blobs.segment_key(message.name, index))
        return Nothing()

    async def _enroll(self, message: Enroll) -> Enrolled:
        if message.token not in self._nodes:
            self._nodes[message.token] = message.facts
            self.put(NODES, list(self._nodes.values()))
        return Enrolled(list(self._nodes).index(message.token))

    async def _show(self, message: Show) -> Nothing:
        self._output.add(message.piece)
        self._notify_readers()
        return Nothing()

    async def _read_output(self, message: ReadOutput) -> OutputPage:
        position = message.position
        page = await self._until(lambda: self._output.since(position), message.timeout, lambda: self._shown)
        return page or OutputPage((), position, 0)

    async def _read_clock(self, message: ReadClock) -> Time:
        del message
        return Time(int(self._clock.monotonic() * 1e9))

    async def _status(self, message: Status) -> object:
        del message
        membership, now = self._membership, self._clock.monotonic()
        return {
            "job": self._job_id,
            "generation": membership.world.generation if membership.world else 0,
            "failure": membership.failure.message if membership.failure else None,
            "tasks": [_describe(view, now) for view in (*membership.views, *membership.side_views)],
        }


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    """Returns when the event is set or the time is over."""
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except asyncio.TimeoutError:
        return


def _describe(view: TaskView, now: float) -> Mapping[str, object]:
    age = None if view.last_heartbeat is None else round(now - view.last_heartbeat, 3)
    return {
        "task": str(view.task),
        "rank": view.rank if view.task.is_trainer else None,
        "state": view.state.value,
        "activity": view.activity,
        "node": view.node,
        "pid": view.pid,
        "heartbeat_age_s": age,
        "info": dict(view.info),
        "exit": view.exit,
    }
