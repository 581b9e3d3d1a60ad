"""What the coordinator does for its job: answers requests out of membership and store, and keeps their times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tfcollective.clock import Clock
from tfcollective.codec import from_document, to_document
from tfcollective.control import blobs
from tfcollective.control.output_log import OutputLog, OutputPage, OutputPiece
from tfcollective.control.protocol import NODES, TRAINING_ENDED
from tfcollective.control.requests import BadRequest, Body
from tfcollective.control.state import JoinRequest, Membership, RendezvousFailure, TaskView
from tfcollective.control.store import Entry, Store
from tfcollective.errors import ConfigError
from tfcollective.failures import ExitRecord
from tfcollective.tasks import TaskKey
from tfcollective.topology import World

__all__ = ["Handler", "JobService", "JobView", "Reply"]

Reply = Mapping[str, object]
Handler = Callable[[Body], Awaitable[Reply]]
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
        self._told: tuple[World, Reply] | None = None
        self._began: dict[TaskKey, float] = {}
        self._durations: dict[TaskKey, float] = {}
        self._nodes: dict[str, Mapping[str, object]] = {}
        self._output = OutputLog(_MAX_OUTPUT_BYTES)
        self._handlers: dict[str, Handler] = {
            "/v1/join": self._join,
            "/v1/heartbeat": self._heartbeat,
            "/v1/leave": self._leave,
            "/v1/lost": self._lost,
            "/v1/started": self._started,
            "/v1/exited": self._exited,
            "/v1/status": self._status,
            "/v1/clock": self._tell_time,
            "/v1/enroll": self._enroll,
            "/v1/put": self._put,
            "/v1/get": self._get,
            "/v1/remove": self._remove,
            "/v1/show": self._show,
            "/v1/read": self._read,
        }

    def handler(self, path: str) -> Handler | None:
        """What answers a POST to ``path``; it raises BadRequest or Refusal. None if there is no such path."""
        return self._handlers.get(path)

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

    async def _join(self, body: Body) -> Reply:
        join = JoinRequest(
            task=body.task("task"),
            size=body.integer("size"),
            node=body.text("node"),
            pid=body.integer("pid"),
            address=body.text("address"),
        )
        round_ends = self._membership.deadline
        self._membership.join(join, self._clock.monotonic())
        if self._membership.deadline != round_ends or self._membership.outcome(join) is not None:
            self._notify()  # the round has begun or is over: what lies between wakes nobody, or n joins wake n^2 times
        outcome = await self._until(lambda: self._membership.outcome(join), body.number("timeout"))
        if isinstance(outcome, World):
            return self._tell_world(outcome)
        if isinstance(outcome, RendezvousFailure):
            return {"failure": outcome.message, "missing": list(outcome.missing)}
        if self._closing:
            return {"failure": "the job has ended", "missing": []}
        return {"missing": [str(task) for task in self._membership.missing]}

    def _tell_world(self, world: World) -> Reply:
        """The same reply for all its members, made once."""
        if self._told is None or self._told[0] is not world:
            self._told = (world, {"world": to_document(world)})
        return self._told[1]

    async def _heartbeat(self, body: Body) -> Reply:
        now = self._clock.monotonic()
        self._membership.heartbeat(body.task("task"), body.text("activity"), body.mapping("info"), now)
        return {}

    async def _leave(self, body: Body) -> Reply:
        self._membership.leave(body.task("task"), self._clock.monotonic())
        self._notify()
        return {}

    async def _lost(self, body: Body) -> Reply:
        generation = body.integer("generation")
        lost = await self._until(lambda: self._membership.lost_member(generation), body.number("timeout"))
        return {} if lost is None else {"rank": lost[0], "message": lost[1]}

    async def _started(self, body: Body) -> Reply:
        self._membership.started(body.task("task"), body.text("node"), body.integer("pid"))
        self._began.setdefault(body.task("task"), self._clock.monotonic())
        return {}

    async def _exited(self, body: Body) -> Reply:
        try:
            self.exited(from_document(body.mapping("record"), ExitRecord, "the record"))
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        return {}

    async def _put(self, body: Body) -> Reply:
        return {"version": self.put(body.text("key"), body.value("value"))}

    async def _get(self, body: Body) -> Reply:
        key, version = body.text("key"), body.integer("version")
        entry = await self._until(
            lambda: self._store.newer(key, version),
            body.number("timeout"),
            lambda: self._put_to.setdefault(key, asyncio.Event()),
        )
        return _entry_reply(entry)

    async def _remove(self, body: Body) -> Reply:
        """Forgets the bytes under a name: the number of their segments first, so that no reader finds half of them."""
        name = body.text("name")
        count = len(self.segments(name) or ())
        self._store.remove(blobs.count_key(name))
        for index in range(count):
            self._store.remove(blobs.segment_key(name, index))
        return {}

    async def _enroll(self, body: Body) -> Reply:
        """An agent that was not started by the launcher itself says that it is there. Repeating it changes nothing."""
        token = body.text("token")
        if token not in self._nodes:
            self._nodes[token] = body.mapping("facts")
            self.put(NODES, list(self._nodes.values()))
        return {"number": list(self._nodes).index(token)}

    async def _show(self, body: Body) -> Reply:
        """A node's output, for those who read along."""
        self._output.add(OutputPiece(body.text("node"), body.text("stream"), body.text("text")))
        self._notify_readers()
        return {}

    async def _read(self, body: Body) -> Reply:
        position = body.integer("position")
        page = await self._until(lambda: self._output.since(position), body.number("timeout"), lambda: self._shown)
        reply: Reply = to_document(OutputPage((), position, 0) if page is None else page)
        return reply

    async def _tell_time(self, body: Body) -> Reply:
        del body
        return {"monotonic_ns": int(self._clock.monotonic() * 1e9)}

    async def _status(self, body: Body) -> Reply:
        del body
        membership, now = self._membership, self._clock.monotonic()
        return {
            "job": self._job_id,
            "generation": membership.world.generation if membership.world else 0,
            "failure": membership.failure.message if membership.failure else None,
            "tasks": [_task_reply(view, now) for view in (*membership.views, *membership.side_views)],
        }


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    """Returns when the event is set or the time is over."""
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except asyncio.TimeoutError:
        return


def _entry_reply(entry: Entry | None) -> Reply:
    return {"version": 0} if entry is None else {"version": entry.version, "value": entry.value}


def _task_reply(view: TaskView, now: float) -> Reply:
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
        "exit": to_document(view.exit),
    }
