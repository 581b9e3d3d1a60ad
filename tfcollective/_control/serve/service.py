"""What the coordinator does for its job: answers requests out of membership and store, and keeps their times."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tfcollective._base.clock import Clock, LivenessTracker
from tfcollective._base.codec import decode, encode
from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import World
from tfcollective._control.serve.job import JobEvent, JobState, JobView
from tfcollective._control.serve.wakeups import Wakeups
from tfcollective._control.state.membership import LeaveRequest, Membership, RendezvousFailure, TaskView
from tfcollective._control.state.output_log import OutputLog, OutputPage
from tfcollective._control.state.rounds import NO_LIMIT, JoinRequest
from tfcollective._control.state.store import Store
from tfcollective._control.wire import messages
from tfcollective._control.wire.protocol import end_key, node_name

_T = TypeVar("_T")
_MAX_OUTPUT_BYTES = 16 << 20
_GATHER_OUTPUT_S = 0.05  # from the first line on: a thousand nodes show lines every few milliseconds
# What requests wait for; besides, (_STORE, key) for a value and a Presence for the silence of a process.
_TIME, _ROUND, _ENDS, _OUTPUT, _STORE, _NODES = "time", "round", "ends", "output", "store", "nodes"


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
        on_event: called with each :class:`~tfcollective._control.serve.job.JobEvent`, in order; must not block.
    """

    def __init__(
        self,
        job_id: str,
        membership: Membership,
        store: Store,
        clock: Clock,
        silence_limit: float = math.inf,
        on_event: Callable[[JobEvent], None] = lambda event: None,
    ) -> None:
        self._state = JobState(membership, store)
        self._on_event = on_event
        self._job_id = job_id
        self._membership = membership
        self._store = store
        self._clock = clock
        self._silence_limit = silence_limit
        self._wakeups = Wakeups()
        self._liveness = LivenessTracker[str](TIMING.longest_gap)  # of processes that are no tasks
        self._awaited: Counter[messages.Presence] = Counter()
        self._never_heard: set[str] = set()
        # By task: the newest request to join, and whether the connection is there by which it has come.
        self._joining: dict[TaskKey, tuple[JoinRequest, Callable[[], bool]]] = {}
        self._closing = False
        self._round_reply: tuple[World | RendezvousFailure, bytes] | None = None
        self._output = OutputLog(_MAX_OUTPUT_BYTES)
        self._gathers_output = False
        kinds: Mapping[type, Callable[[Any], Awaitable[object]]] = {
            messages.Join: self._join,
            messages.Beat: self._beat,
            messages.Alive: self._alive,
            messages.Leave: self._change_round,
            messages.Done: self._change_round,
            messages.Failing: self._change_round,
            messages.NodeLeaves: self._change_round,
            messages.FindLost: self._find_lost,
            messages.CountMembers: self._count_members,
            messages.Started: self._started,
            messages.Exited: self._exited,
            messages.Status: self._status,
            messages.ReadClock: self._read_clock,
            messages.Enroll: self._enroll,
            messages.ListNodes: self._list_nodes,
            messages.FindGone: self._find_gone,
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

    async def answer(self, path: str, body: bytes, connected: Callable[[], bool] = lambda: True) -> bytes:
        """The answer to a request to ``path``; ``connected()`` as long as the connection lasts by which it has come.
        Raises ConfigError when ``body`` is something else than that request, Refusal when it contradicts the state."""
        kind, handler = self._handlers[path]
        request: object = decode(body, kind, "the body")
        if isinstance(request, messages.Join):
            self._forsake(request, connected)
        reply = await handler(request)
        return reply if isinstance(reply, bytes) else encode(reply)

    def close(self) -> None:
        """Ends all waits: their answer is that the job has ended."""
        self._closing = True
        self._wakeups.wake_all()

    def _forsake(self, message: messages.Join, connected: Callable[[], bool]) -> None:
        """Another process that waited as this task does so no longer if its connection has ended: without an agent
        none else says that it has died."""
        task, request = message.request.task, message.request
        earlier, was_connected = self._joining.get(task, (request, connected))
        if (earlier.node, earlier.pid) != (request.node, request.pid):
            if was_connected():
                return  # two processes have the same task
            self._membership.forsake(task)
        self._joining[task] = request, connected

    # ---- for the process that owns the coordinator -----------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it stands."""
        return self._state.view()

    def exited(self, record: ExitRecord) -> None:
        """Notes the end of a task's process."""
        self._make(messages.Exited(record), _ROUND, _ENDS, _TIME)

    def admit(self, task: TaskKey, change: int = 0) -> None:
        """See :meth:`Membership.admit`."""
        self._membership.admit(task, change)

    def admit_no_more(self) -> None:
        """See :meth:`Membership.admit_no_more`."""
        self._state.admit_no_more(self._clock.monotonic())
        self._tell(_ROUND, _TIME)

    def put(self, key: str, value: object) -> int:
        """Stores a value for the tasks; returns its version."""
        version: int = self._make(messages.Put(key, value))
        return version

    def segments(self, name: str) -> list[object] | None:
        """See :meth:`JobState.segments`."""
        return self._state.segments(name)

    def _make(self, what: object, *topics: Hashable) -> Any:
        """Makes a change, and wakes those that wait for it or for one of the topics."""
        made = self._state.make(what, self._clock.monotonic())
        self._tell(*topics)
        return made

    def _tell(self, *topics: Hashable) -> None:
        """Something may have changed: those that it concerns hear of it, and those that wait for one of the topics."""
        self._wakeups.wake(*topics, *((_STORE, key) for key in self._state.take_touched()))
        for number in self._state.take_forgotten():
            self._liveness.forget(node_name(number))
            self._never_heard.discard(node_name(number))
        for event in self._state.take_events():
            self._on_event(event)

    # ---- time ------------------------------------------------------------------------------------------------------

    async def keep_time(self) -> None:
        """Does what is due when its time comes; sleeps until then, or until something is due sooner."""
        while not self._closing:
            await self._wakeups.wait((_TIME,), self._until_due())
            now = self._clock.monotonic()
            before = (self._membership.failure, self._membership.world)
            self._state.expire(now)
            if (self._membership.failure, self._membership.world) != before:
                self._wakeups.wake(_ROUND)
            self._state.find_silent(now, self._silence_limit)
            self._tell()
            self._wakeups.wake(*(one for one in self._awaited if self._is_silent(one)))

    def _until_due(self) -> float | None:
        """In how many seconds something is due; None: not yet."""
        judges = self._awaited or (self._silence_limit < math.inf and self._membership.expects_heartbeats)
        deadline = self._membership.deadline
        if deadline is None:
            return TIMING.watch if judges else None
        return min(TIMING.watch, max(0.0, deadline - self._clock.monotonic()))

    def _is_silent(self, presence: messages.Presence | None) -> bool:
        if presence is None:
            return False
        if self._state.has_forgotten(presence.name):
            return True
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
        self._make(message)
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
        tells = message.timeout <= 0 or self._membership.tells_missing(request.task)
        missing = self._membership.missing if tells else ()
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
        self._state.hear(beat, self._clock.monotonic())
        self._tell()

    async def _alive(self, message: messages.Alive) -> messages.Nothing:
        self._liveness.heard(message.name, self._clock.monotonic())
        self._never_heard.discard(message.name)
        for beat in message.beats:
            self._heartbeat(beat)
        return messages.Nothing()

    async def _change_round(
        self, message: messages.Leave | messages.NodeLeaves | messages.Done | messages.Failing
    ) -> messages.Nothing:
        self._make(message, _ROUND, _TIME)
        return messages.Nothing()

    async def _find_lost(self, message: messages.FindLost) -> messages.Lost:
        lost = await self._until(lambda: self._membership.lost_member(message.generation), message.timeout, _ENDS)
        return messages.Lost() if lost is None else messages.Lost(*lost)

    async def _count_members(self, message: messages.CountMembers) -> messages.Members:
        del message
        return messages.Members(len(self._membership.members))

    async def _started(self, message: messages.Started) -> messages.Nothing:
        due = self._membership.deadline
        self._make(message)
        if self._membership.deadline != due:
            self._wakeups.wake(_TIME)
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
        if presence is None or self._state.has_forgotten(presence.name):
            yield
            return
        self._expect(presence.name)
        self._awaited[presence] += 1
        if len(self._awaited) == 1:
            self._wakeups.wake(_TIME)  # there is something to look for; later waits are looked at in their turn
        try:
            yield
        finally:
            self._awaited[presence] -= 1
            if not self._awaited[presence]:
                del self._awaited[presence]

    def _expect(self, name: str) -> None:
        """From now on, the silence of this process counts."""
        if name not in self._liveness:
            self._liveness.heard(name, self._clock.monotonic())
            self._never_heard.add(name)

    async def _remove(self, message: messages.Remove) -> messages.Nothing:
        self._make(message)
        return messages.Nothing()

    async def _enroll(self, message: messages.Enroll) -> messages.Enrolled:
        return messages.Enrolled(self._make(message, _NODES))

    async def _list_nodes(self, message: messages.ListNodes) -> messages.NodeList:
        nodes = self._state.nodes
        page = await self._until(lambda: nodes.since(message.since) or None, message.timeout, _NODES)
        return messages.NodeList(page or (), nodes.count)

    async def _find_gone(self, message: messages.FindGone) -> messages.Gone:
        return messages.Gone(tuple(number for number in message.nodes if self._has_gone(number, message.limit)))

    def _has_gone(self, number: int, limit: float) -> bool:
        name = node_name(number)
        if self._state.has_forgotten(name) or self._store.get(end_key(number)) is not None:
            return True
        self._expect(name)
        return self._is_silent(messages.Presence(name, limit, limit))

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
            "max_size": membership.bounds.largest if membership.bounds.largest < NO_LIMIT else None,
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
        # Without its last output, which the report has: that of the hundreds that a long job replaces is too much.
        "exit": None if view.exit is None else replace(view.exit, stderr_tail=()),
    }
