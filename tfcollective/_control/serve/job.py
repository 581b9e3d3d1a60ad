"""All that a coordinator knows of its job: pure. What changes it are values, which can be written down and done again.

Signs of life come in once a second from each rank, and hardly ever change more than what is known of its life: these
are not among the values. A process that goes on where another one has ended hears them anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tfcollective._base.tasks import TaskKey
from tfcollective._control.state import blobs
from tfcollective._control.state.enrolments import Enrolments
from tfcollective._control.state.membership import (
    Membership,
    Refusal,
    RendezvousFailure,
    Silence,
    TaskView,
    WorldChange,
)
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
class Expire:
    """The time of some waits was over."""


@dataclass(frozen=True)
class FallSilent:
    """Some tasks had given no sign of life for too long."""

    silence: Silence


@dataclass(frozen=True)
class Recall:
    """What a task had said last before it left or ended, and when that was heard."""

    beat: messages.Beat
    heard: float


@dataclass(frozen=True)
class Forsake:
    """A task that has joined is not waited for any longer: its process has gone, and another one takes its place."""

    task: TaskKey


@dataclass(frozen=True)
class Resume:
    """A process went on where another one had ended."""


@dataclass(frozen=True)
class Change:
    """Something that has changed the job.

    Attributes:
        what: the value: a request, or one of the classes above.
        at: when, on the monotonic clock of the host.
        stopped: how much of the time until then did not count: see :attr:`Membership.stopped`.
    """

    what: object
    at: float
    stopped: float


#: By class: :attr:`Change.what`.
CHANGES: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(messages.Join, messages.Beat, messages.Leave, messages.NodeLeaves, messages.Done, messages.Failing),
        *(messages.Admit, messages.AdmitNoMore, messages.Started, messages.Exited),
        *(messages.Put, messages.Remove, messages.Enroll),
        *(Expire, FallSilent, Forsake, Recall, Resume),
    )
}


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
        record: given each change, once it has been made and before anyone can know of it; None: it is not wanted.

    Attributes:
        events: what its launcher is to hear of, in order.
        durations: how long (s) the processes of the tasks that have ended ran.
        changes: how many there have been.
        announced: the newest generation for which the members were asked to come together.
        nodes: those that have enrolled.
    """

    def __init__(self, membership: Membership, store: Store, record: Callable[[Change], None] | None = None) -> None:
        self.membership = membership
        self.store = store
        self.events: list[messages.JobEvent] = []
        self.durations: dict[TaskKey, float] = {}
        self.changes = 0
        self.announced = 0
        self._record = record
        self._began: dict[TaskKey, float] = {}
        self.nodes = Enrolments()
        self._touched: list[str] = []
        self._forgotten: list[int] = []  # nodes
        self._makers: Mapping[type, Callable[[Any, float], object]] = {
            messages.Join: lambda what, now: self.membership.join(what.request, now, what.lost),
            messages.Beat: self._beat,
            messages.Leave: self._leave,
            messages.NodeLeaves: lambda what, now: self.membership.ask_to_leave(what.tasks, what.why, now, what.change),
            messages.Done: lambda what, now: self.membership.done_training(what.task, now, again=what.again),
            messages.Failing: lambda what, now: self.membership.failing(what.task, what.cause, now),
            messages.Admit: self._admit,
            messages.AdmitNoMore: lambda what, now: self.membership.admit_no_more(now),
            messages.Started: self._started,
            messages.Exited: self._exited,
            messages.Put: lambda what, now: self._put(what.key, what.value),
            messages.Remove: self._remove,
            messages.Enroll: self._enroll,
            Expire: self._expire,
            FallSilent: self._fall_silent,
            Forsake: lambda what, now: self.membership.forsake(what.task),
            Recall: self._recall,
            Resume: lambda what, now: self.membership.resume(now),
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
        """Makes a change and has it recorded; what it comes to. Raises Refusal, and changes nothing then."""
        self._recall_last(what, now)
        made = self._makers[type(what)](what, now)
        self._follow_up(what, now)
        return made

    def hear(self, beat: messages.Beat, now: float) -> None:
        """A sign of life; raises Refusal. A change only where it changes more than what is known of the task's life."""
        if self._beat(beat, now):
            self._follow_up(beat, now)

    def expire(self, now: float) -> None:
        """Ends the waits whose time is over."""
        what, before, events = Expire(), self.membership.mark, len(self.events)
        self._expire(what, now)
        if len(self.events) > events or self.membership.mark != before:
            self._follow_up(what, now)

    def find_silent(self, now: float, limit: float) -> None:
        """Looks for tasks that have given no sign of life for ``limit`` seconds; see :meth:`Membership.find_silent`."""
        silence = self.membership.look_for_silent(now, limit)
        if silence != Silence():
            self.make(FallSilent(silence), now)

    def repeat(self, changes: Iterable[Change]) -> None:
        """Makes changes that another process has recorded, in their order; they are not recorded again."""
        record, self._record = self._record, None
        for change in changes:
            self.membership.count_from(change.at, change.stopped)
            self.make(change.what, change.at)
        self._record = record
        self._touched.clear()

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

    def _follow_up(self, what: object, now: float) -> None:
        """What follows from a change whatever it was; its record holds that, too."""
        pending = self.membership.pending
        if pending > self.announced:
            self.announced = pending
            self._say(PENDING, pending)
        ended = isinstance(what, messages.Exited) and self.membership.training_ended
        if ended and self.store.get(TRAINING_ENDED) is None:
            self._say(TRAINING_ENDED, True)
            self.events.append(messages.JobEvent(trained=True))
        self._note(what, now)

    def _say(self, key: str, value: object) -> None:
        with suppress(Refusal):  # the store is full, for which the one whose change this is cannot help
            self._put(key, value)

    def _note(self, what: object, now: float) -> None:
        self.changes += 1
        if self._record is not None:
            self._record(Change(what, now, self.membership.stopped))

    def _recall_last(self, what: object, now: float) -> None:
        """What a task says last is what people hear of it: it says no more once it has left or ended."""
        if self._record is None or not isinstance(what, messages.Exited | messages.Leave):
            return
        task = TaskKey.parse(what.record.task) if isinstance(what, messages.Exited) else what.task
        view = self.membership.view_of(task)
        if view is not None and view.last_heartbeat is not None and not view.ended:
            beat = messages.Beat(task, view.activity, view.info, view.said)
            self._note(Recall(beat, view.last_heartbeat), now)

    def _beat(self, beat: messages.Beat, now: float) -> bool:
        return self.membership.heartbeat(beat.task, beat.activity, beat.info, now, beat.said)

    def _leave(self, what: messages.Leave, now: float) -> None:
        self.membership.leave(what.task, now, what.for_good, what.why, ends=what.ends)

    def _recall(self, what: Recall, now: float) -> None:
        del now
        beat = what.beat
        self.membership.recall(beat.task, beat.activity, beat.info, beat.said, what.heard)

    def _admit(self, what: messages.Admit, now: float) -> None:
        del now
        if self.membership.view_of(what.task) is None:  # else it is asked a second time, since no answer came
            self.membership.admit(what.task, what.change)

    def _started(self, what: messages.Started, now: float) -> None:
        self.membership.started(what.task, what.node, what.pid, what.host, now)
        self._began.setdefault(what.task, now)

    def _exited(self, what: messages.Exited, now: float) -> None:
        if not self.membership.exited(what.record, now):
            return
        task = TaskKey.parse(what.record.task)
        if task in self._began:
            self.durations.setdefault(task, now - self._began[task])
        self.events.append(messages.JobEvent(exited=what.record))

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

    def _expire(self, what: Expire, now: float) -> None:
        del what
        for task, why in self.membership.expire(now).items():
            self.events.append(messages.JobEvent(dropped=(task, why)))

    def _fall_silent(self, what: FallSilent, now: float) -> None:
        self.membership.note_silent(what.silence, now)
        for found in what.silence.of_world.items():
            self.events.append(messages.JobEvent(silent=found))

    def segments(self, name: str) -> list[object] | None:
        """The segments of the bytes under ``name``, as they were stored; None if there are none."""
        count = self.store.get(blobs.count_key(name))
        if count is None or not isinstance(count.value, int):
            return None
        entries = [self.store.get(blobs.segment_key(name, index)) for index in range(count.value)]
        return [entry.value if entry is not None else None for entry in entries]
