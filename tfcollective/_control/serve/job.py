"""All that a coordinator knows of its job: pure. Requests and the time change it, and it says what follows: to ranks
by values in the store, to the launcher by :class:`JobEvent`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._control.state import blobs
from tfcollective._control.state.enrolments import Enrolments
from tfcollective._control.state.membership import Membership, Refusal, RendezvousFailure, TaskView, WorldChange
from tfcollective._control.state.store import Store
from tfcollective._control.wire import messages
from tfcollective._control.wire.protocol import (
    PENDING,
    TRAINING_ENDED,
    end_key,
    item_key,
    node_name,
    node_of,
    orders_key,
)


@dataclass(frozen=True)
class JobEvent:
    """One thing that a launcher has to act on.

    Attributes:
        exited: how a task's process has ended.
        dropped: a member that takes part no longer though its process may live, and why.
        silent: a task that gives no sign of life, and for how many seconds it has given none; again each time that
            the limit has passed once more.
        trained: whether rank 0's process has ended.
    """

    exited: ExitRecord | None = None
    dropped: tuple[TaskKey, str] | None = None
    silent: tuple[TaskKey, float] | None = None
    trained: bool = False


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


class JobState:
    """Membership, values and nodes of a job. Not thread-safe.

    Args:
        membership: its tasks.
        store: its values.

    Attributes:
        durations: how long (s) the processes of the tasks that have ended ran.
        nodes: those that have enrolled.
    """

    def __init__(self, membership: Membership, store: Store) -> None:
        self.membership = membership
        self.store = store
        self.durations: dict[TaskKey, float] = {}
        self._events: list[JobEvent] = []
        self._announced = 0  # the newest generation for which the members were asked to come together
        self._began: dict[TaskKey, float] = {}
        self.nodes = Enrolments()
        self._touched: list[str] = []
        self._forgotten: list[int] = []  # nodes
        self._makers: Mapping[type, Callable[[Any, float], object]] = {
            messages.Join: lambda what, now: self.membership.join(what.request, now, what.lost),
            messages.Leave: lambda what, now: self.membership.leave(
                what.task, now, what.for_good, what.why, ends=what.ends
            ),
            messages.NodeLeaves: lambda what, now: self.membership.ask_to_leave(what.tasks, what.why, now, what.change),
            messages.Done: lambda what, now: self.membership.done_training(what.task, now, again=what.again),
            messages.Failing: lambda what, now: self.membership.failing(what.task, what.cause, now),
            messages.Started: self._started,
            messages.Exited: self._exited,
            messages.Put: lambda what, now: self._put(what.key, what.value),
            messages.Remove: self._remove,
            messages.Enroll: self._enroll,
        }

    def view(self) -> JobView:
        """The job as it stands."""
        membership = self.membership
        return JobView(
            tasks=membership.views,
            failure=membership.failure,
            initialised=membership.initialised,
            auxiliary_tasks=membership.side_views,
            generation=membership.world.generation if membership.world else 0,
            durations=dict(self.durations),
            members=tuple(membership.members),
            leavers=membership.leavers,
            changes=membership.changes,
            done=membership.done,
            trained=membership.trained,
        )

    def make(self, what: object, now: float) -> Any:
        """Does what a request asks for; what it comes to. Raises Refusal, and changes nothing then."""
        made = self._makers[type(what)](what, now)
        self._announce()
        return made

    def hear(self, beat: messages.Beat, now: float) -> None:
        """A sign of life of a task; raises Refusal."""
        self.membership.heartbeat(beat.task, beat.activity, beat.info, now, beat.said)
        self._announce()

    def admit_no_more(self, now: float) -> None:
        """See :meth:`Membership.admit_no_more`."""
        self.membership.admit_no_more(now)
        self._announce()

    def expire(self, now: float) -> None:
        """Ends the waits whose time is over."""
        self._events += (JobEvent(dropped=one) for one in self.membership.expire(now).items())
        self._announce()

    def find_silent(self, now: float, limit: float) -> None:
        """Looks for tasks that have given no sign of life for ``limit`` seconds; see :meth:`Membership.find_silent`."""
        self._events += (JobEvent(silent=one) for one in self.membership.find_silent(now, limit).items())
        self._announce()

    def take_events(self) -> list[JobEvent]:
        """What the launcher is to hear of since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_touched(self) -> list[str]:
        """The keys of the values that have been set since the last call."""
        touched, self._touched = self._touched, []
        return touched

    def has_forgotten(self, name: str) -> bool:
        """Whether this is the name of a node that has ended so long ago that nothing is known of it any longer."""
        number = node_of(name, node_name)
        return number is not None and number < self.nodes.count and number not in self.nodes

    def take_forgotten(self) -> list[int]:
        """The numbers of the nodes of which nothing is known any longer since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _announce(self) -> None:
        """Asks the members to come together where a change has made that necessary."""
        pending = self.membership.pending
        if pending > self._announced:
            self._announced = pending
            self._say(PENDING, pending)

    def _say(self, key: str, value: object) -> None:
        with suppress(Refusal):  # the store is full, for which the one whose change this is cannot help
            self._put(key, value)

    def _started(self, what: messages.Started, now: float) -> None:
        self.membership.started(what.task, what.node, what.pid, what.host, now)
        self._began.setdefault(what.task, now)

    def _exited(self, what: messages.Exited, now: float) -> None:
        if not self.membership.exited(what.record, now):
            return
        task = TaskKey.parse(what.record.task)
        if task in self._began:
            self.durations.setdefault(task, now - self._began[task])
        self._events.append(JobEvent(exited=what.record))
        if self.membership.training_ended and self.store.get(TRAINING_ENDED) is None:
            self._say(TRAINING_ENDED, True)
            self._events.append(JobEvent(trained=True))

    def _put(self, key: str, value: object) -> int:
        version = self.store.put(key, value)
        self._touched.append(key)
        node = node_of(key, end_key)
        if node is not None:
            self._end_node(node)
        return version

    def _end_node(self, number: int) -> None:
        """Of the nodes that have ended only the newest ones are known."""
        oldest = self.nodes.end(number)
        if oldest is None:
            return
        self._forgotten.append(oldest)
        self.store.remove(end_key(oldest))
        for order in itertools.count():
            key = item_key(orders_key(oldest), order)
            if self.store.get(key) is None:
                break
            self.store.remove(key)

    def _remove(self, what: messages.Remove, now: float) -> None:
        """The number of segments first, so that no reader finds half of them."""
        del now
        count = len(self.segments(what.name) or ())
        self.store.remove(blobs.count_key(what.name))
        for index in range(count):
            self.store.remove(blobs.segment_key(what.name, index))

    def _enroll(self, what: messages.Enroll, now: float) -> int:
        del now
        return self.nodes.add(what.token, what.facts)

    def segments(self, name: str) -> list[object] | None:
        """The segments of the bytes under ``name``, as they were stored; None if there are none."""
        count = self.store.get(blobs.count_key(name))
        if count is None or not isinstance(count.value, int):
            return None
        entries = [self.store.get(blobs.segment_key(name, index)) for index in range(count.value)]
        return [entry.value if entry is not None else None for entry in entries]
