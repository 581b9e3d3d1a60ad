"""The work around the coordinator's pure job: performs the effects of events, keeps the time, and answers waiting
requests when what they wait for has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any, TypeVar

from tfcollective._base.clock import Clock
from tfcollective._base.codec import decode, encode
from tfcollective._base.log import get_logger
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import World
from tfcollective._control import messages
from tfcollective._control.messages import JoinRequest, OutputPage, Request
from tfcollective._control.serve.wakeups import Wakeups
from tfcollective._control.snapshot import JobSnapshot, RendezvousFailure
from tfcollective._control.state.events import AskStacks, EndDump, Forsake, JobEvent, StoreKey, Tick, Topic
from tfcollective._control.state.job import EVENTS, Job
from tfcollective._control.state.membership import LeaveRequest

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_H = TypeVar("_H", bound=Callable[..., Awaitable[object]])
_GATHER_OUTPUT_S = 0.05  # from the first line on: a thousand nodes show lines every few milliseconds
_KINDS: dict[str, type[Request[Any]]] = {kind.path: kind for kind in Request.__subclasses__()}
_HANDLERS: dict[type, Callable[[Any, Any], Awaitable[object]]] = {}


def _answers(kind: type) -> Callable[[_H], _H]:
    """The method answers requests of this class, which wait, or need a clock. All others are events of the job, whose
    effects have the answer."""

    def register(method: _H) -> _H:
        _HANDLERS[kind] = method
        return method

    return register


class JobService:
    """A job, and the requests that wait for it to change. A change wakes those that wait for it; heartbeats are noted
    and wake none: their absence is looked for (:data:`Timing.watch`).

    Lives on the thread of one event loop, which is the lock over the job; only its construction may happen elsewhere.

    Args:
        job: its state.
        clock: the time.
        on_event: called with each :class:`JobEvent`, in order; must not block.
    """

    def __init__(self, job: Job, clock: Clock, on_event: Callable[[JobEvent], None] = lambda event: None) -> None:
        self._job = job
        self._membership = job.membership
        self._on_event = on_event
        self._clock = clock
        self._wakeups = Wakeups()
        self._awaited: Counter[messages.Presence] = Counter()
        # By task: the newest request to join, and whether its connection is still open.
        self._joining: dict[TaskKey, tuple[JoinRequest, Callable[[], bool]]] = {}
        self._closing = False
        self._round_reply: tuple[World | RendezvousFailure, bytes] | None = None
        self._gathers_output = False

    def serves(self, path: str) -> bool:
        """True if there are requests that go to ``path``."""
        kind = _KINDS.get(path)
        return kind in _HANDLERS or kind in EVENTS

    async def answer(self, path: str, body: bytes, connected: Callable[[], bool] = lambda: True) -> bytes:
        """The answer to a request to ``path``; ``connected()`` as long as the connection lasts by which it has come.
        Raises ConfigError when ``body`` is something else than that request, Refusal when it contradicts the state."""
        request = decode(body, _KINDS[path], "the body")
        if isinstance(request, messages.Join):
            self._forsake(request, connected)
        handler = _HANDLERS.get(type(request))
        reply = self.apply(request) if handler is None else await handler(self, request)
        return reply if isinstance(reply, bytes) else encode(reply)

    def apply(self, event: object) -> Any:
        """Applies an event and performs its effects; returns the reply. Raises Refusal."""
        effects = self._job.apply(event, self._clock.monotonic())
        self._wakeups.wake(*effects.changed)
        for one in effects.news:
            self._on_event(one)
        return effects.reply

    def snapshot(self) -> JobSnapshot:
        """The job as it stands."""
        return self._job.snapshot(self._clock.monotonic(), self._clock.wall())

    def segments(self, name: str) -> list[object] | None:
        """See :meth:`Job.segments`."""
        return self._job.segments(name)

    def close(self) -> None:
        """Ends all waits: their answer is that the job has ended."""
        self._closing = True
        self._wakeups.wake_all()

    # ---- time ------------------------------------------------------------------------------------------------------

    async def keep_time(self) -> None:
        """Does what is due when its time comes; sleeps until then, or until something is due sooner."""
        while not self._closing:
            await self._wakeups.wait((Topic.TIME,), self._until_due())
            try:
                self._look_at_the_time()
            except Exception:  # noqa: BLE001  # whatever it is: without this loop no deadline ends
                _LOG.exception("the coordinator could not do what was due, and tries again")
                await asyncio.sleep(TIMING.watch)  # overdue work would be tried again without a pause

    def _look_at_the_time(self) -> None:
        self.apply(Tick())
        now = self._clock.monotonic()
        self._wakeups.wake(*(one for one in self._awaited if self._job.is_silent(one, now)))

    def _until_due(self) -> float | None:
        """The time (s) until something is due; None: nothing is due yet."""
        deadline = self._membership.deadline
        if deadline is None:
            return TIMING.watch if self._awaited or self._job.watches else None
        return min(TIMING.watch, max(0.0, deadline - self._clock.monotonic()))

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

    # ---- requests that wait ----------------------------------------------------------------------------------------

    def _forsake(self, message: messages.Join, connected: Callable[[], bool]) -> None:
        """Ends the join of an earlier process of this task if its connection has ended: without an agent, nobody else
        reports its death."""
        task, request = message.request.task, message.request
        earlier, was_connected = self._joining.get(task, (request, connected))
        if (earlier.node, earlier.pid) != (request.node, request.pid):
            if was_connected():
                return  # two processes have the same task
            self.apply(Forsake(task))
        self._joining[task] = request, connected

    @_answers(messages.Join)
    async def _join(self, message: messages.Join) -> object:
        request = message.request
        if message.first and self._membership.trains_without(request.task):
            return messages.Joined(begun=True)
        self.apply(message)
        outcome: World | RendezvousFailure | LeaveRequest | None = await self._until(
            lambda: self._membership.outcome(request), message.timeout, Topic.ROUND
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
        """Returns the reply that all ranks of a round get, encoded only once."""
        if self._round_reply is None or self._round_reply[0] is not outcome:
            self._round_reply = (outcome, encode(_joined(outcome)))
        return self._round_reply[1]

    @_answers(messages.FindLost)
    async def _find_lost(self, message: messages.FindLost) -> messages.Lost:
        lost = await self._until(lambda: self._membership.lost_member(message.generation), message.timeout, Topic.ENDS)
        return messages.Lost() if lost is None else messages.Lost(*lost)

    @_answers(messages.Get)
    async def _get(self, message: messages.Get) -> messages.Found:
        self.apply(message)
        with self._awaiting(message.presence):
            topics: list[Hashable] = [StoreKey(message.key)]
            if message.presence is not None:
                topics.append(message.presence)
            found = await self._until(
                lambda: self._job.found(message, self._clock.monotonic()), message.timeout, *topics
            )
        return found or messages.Found()

    @contextlib.contextmanager
    def _awaiting(self, presence: messages.Presence | None) -> Iterator[None]:
        """Wakes the requests that wait for ``presence`` when its process falls silent, while this is open."""
        if presence is None or self._job.is_silent(presence, self._clock.monotonic()):
            yield
            return
        self._awaited[presence] += 1
        if len(self._awaited) == 1:
            self._wakeups.wake(Topic.TIME)  # starts the timer; it also covers later waits
        try:
            yield
        finally:
            self._awaited[presence] -= 1
            if not self._awaited[presence]:
                del self._awaited[presence]

    @_answers(messages.ListNodes)
    async def _list_nodes(self, message: messages.ListNodes) -> messages.NodeList:
        nodes = self._job.nodes
        page = await self._until(lambda: nodes.since(message.since) or None, message.timeout, Topic.NODES)
        return messages.NodeList(page or (), nodes.count)

    @_answers(messages.Show)
    async def _show(self, message: messages.Show) -> messages.Nothing:
        self.apply(message)
        if not self._gathers_output:
            self._gathers_output = True
            asyncio.get_running_loop().call_later(_GATHER_OUTPUT_S, self._hand_on_output)
        return messages.Nothing()

    def _hand_on_output(self) -> None:
        self._gathers_output = False
        self._wakeups.wake(Topic.OUTPUT)

    @_answers(messages.ReadOutput)
    async def _read_output(self, message: messages.ReadOutput) -> OutputPage:
        position = message.position
        page = await self._until(lambda: self._job.output.since(position), message.timeout, Topic.OUTPUT)
        return page or OutputPage((), position, 0)

    @_answers(messages.Dump)
    async def _dump(self, message: messages.Dump) -> messages.Dumped:
        number = self.apply(AskStacks(message.tasks))
        await self._until(lambda: self._job.has_all_stacks(number) or None, message.timeout, Topic.STACKS, Topic.ENDS)
        return messages.Dumped(messages.pack_dump(self.apply(EndDump(number))))

    # ---- requests that need a clock --------------------------------------------------------------------------------

    @_answers(messages.ReadClock)
    async def _read_clock(self, message: messages.ReadClock) -> messages.Time:
        del message
        return messages.Time(int(self._clock.monotonic() * 1e9))

    @_answers(messages.Status)
    async def _status(self, message: messages.Status) -> JobSnapshot:
        del message
        return self.snapshot().without_output()


def _joined(outcome: World | RendezvousFailure) -> messages.Joined:
    if isinstance(outcome, World):
        return messages.Joined(messages.pack_world(outcome))
    return messages.Joined(failure=outcome.message, missing=outcome.missing, over=outcome.over)
