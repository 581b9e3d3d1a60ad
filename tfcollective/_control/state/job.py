"""A coordinator's knowledge of its job, as one pure reducer: :meth:`Job.apply` takes an event and the time, changes the
state and returns the effects. No I/O, no lock, no clock: :mod:`tfcollective._control.serve.service` has those.

Events are the requests of :mod:`tfcollective._control.messages` and the classes of
:mod:`tfcollective._control.state.events`. See docs/design/membership.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar

from tfcollective._base.stacks import TaskStacks
from tfcollective._base.tasks import TaskKey
from tfcollective._control import messages
from tfcollective._control.messages import Nothing, Presence, Refusal
from tfcollective._control.snapshot import JobSnapshot, TaskView
from tfcollective._control.state import blobs
from tfcollective._control.state.dumps import Dumps
from tfcollective._control.state.enrolments import Enrolments
from tfcollective._control.state.events import (
    Admit,
    AskStacks,
    CloseAdmission,
    Effects,
    EndDump,
    Forsake,
    JobEvent,
    StoreKey,
    Tick,
    Topic,
)
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.output_log import OutputLog
from tfcollective._control.state.processes import Processes
from tfcollective._control.state.rounds import NO_LIMIT
from tfcollective._control.state.stalls import Stalls
from tfcollective._control.state.store import Store
from tfcollective._control.store_keys import (
    PENDING,
    TRAINING_ENDED,
    end_key,
    item_key,
    node_name,
    node_of,
    orders_key,
)

_MAX_OUTPUT_BYTES = 16 << 20
_NOTHING = Nothing()


_Handler = Callable[[Any, Any, float], object]
#: The classes of the events: the handler, and the topics that it changes.
EVENTS: dict[type, tuple[_Handler, tuple[Topic, ...]]] = {}
_H = TypeVar("_H", bound=Callable[..., object])


def _on(kind: type, *changed: Topic) -> Callable[[_H], _H]:
    """The method handles events of this class, which change these topics; its result is the reply, None for
    :class:`Nothing`."""

    def register(method: _H) -> _H:
        EVENTS[kind] = method, changed
        return method

    return register


class Job:
    """Membership, values, nodes and output of a job. Not thread-safe.

    Args:
        job_id: its name.
        membership: its tasks.
        store: its values.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        stall_warning: after how long (s) a wait for other members is told; 0: never.

    Attributes:
        durations: how long (s) the processes of the tasks that have ended ran.
        nodes: the nodes that have enrolled.
        output: the last output of the nodes.
    """

    def __init__(
        self,
        job_id: str,
        membership: Membership,
        store: Store,
        silence_limit: float = math.inf,
        stall_warning: float = 0.0,
    ) -> None:
        self.job_id = job_id
        self.membership = membership
        self.store = store
        self.nodes = Enrolments()
        self.output = OutputLog(_MAX_OUTPUT_BYTES)
        self.durations: dict[str, float] = {}
        self._silence_limit = silence_limit
        self._processes = Processes()
        self._dumps = Dumps()
        self._stalls = Stalls(stall_warning)
        self._began: dict[TaskKey, float] = {}
        self._announced = 0  # the newest generation for which the members were asked to meet
        self._changed: list[Hashable] = []  # by the event that is being applied
        self._news: list[JobEvent] = []  # the same

    def apply(self, event: object, now: float) -> Effects:
        """Changes the state as ``event`` says. Raises Refusal when that contradicts the state, and changes nothing
        then."""
        handler, changed = EVENTS[type(event)]
        self._changed, self._news = [], []
        membership = self.membership
        world, failure, due = membership.world, membership.failure, membership.deadline
        reply = handler(self, event, now)
        if membership.world is not world or membership.failure is not failure:
            changed = (*changed, Topic.ROUND, Topic.TIME)
        elif membership.deadline != due:
            changed = (*changed, Topic.TIME)
        self._announce()
        topics = tuple(dict.fromkeys((*changed, *self._changed))) if changed or self._changed else ()
        return Effects(_NOTHING if reply is None else reply, topics, tuple(self._news))

    # ---- questions -------------------------------------------------------------------------------------------------

    def snapshot(self, now: float, wall: float) -> JobSnapshot:
        """The job as it stands; ``now`` is the monotonic time, ``wall`` that of calendars."""
        membership, bounds = self.membership, self.membership.bounds
        return JobSnapshot(
            self.job_id,
            membership.views,
            membership.side_views,
            at=now,
            time=wall,
            failure=membership.failure,
            initialised=membership.initialised,
            generation=membership.world.generation if membership.world else 0,
            members=tuple(membership.members),
            done=membership.done,
            trained=membership.trained,
            durations=dict(self.durations),
            rules=bounds.rules,
            min_size=bounds.smallest,
            max_size=bounds.largest if bounds.largest < NO_LIMIT else None,
            pending=membership.pending,
            leaving={str(task): why for task, why in membership.leaving.items()},
            leavers={str(task): why for task, why in membership.leavers.items()},
            changes=membership.changes,
            stalled=self._stalls.lasts(membership.members),
        )

    @property
    def watches(self) -> bool:
        """True if a :class:`Tick` may find a task silent, now or later."""
        return self._silence_limit < math.inf and self.membership.expects_heartbeats

    def found(self, request: messages.Get, now: float) -> messages.Found | None:
        """The answer to ``request`` as far as there is one."""
        entry = self.store.newer(request.key, request.version)
        silent = entry is None and request.presence is not None and self.is_silent(request.presence, now)
        return messages.Found(entry, silent) if entry is not None or silent else None

    def is_silent(self, presence: Presence, now: float) -> bool:
        """True if this process has sent no heartbeat for too long, or ended so long ago that it is forgotten."""
        return self._has_forgotten(presence.name) or self._processes.is_silent(presence, now)

    def segments(self, name: str) -> list[object] | None:
        """The segments of the bytes under ``name``, as they were stored; None if there are none."""
        count = self.store.get(blobs.count_key(name))
        if count is None or not isinstance(count.value, int):
            return None
        entries = [self.store.get(blobs.segment_key(name, index)) for index in range(count.value)]
        return [entry.value if entry is not None else None for entry in entries]

    def has_all_stacks(self, number: int) -> bool:
        """True if nothing is missing from this dump but stacks of processes that have ended meanwhile."""
        running = {view.task for view in self._running()}
        return running.isdisjoint(self._dumps.missing(number))

    def _running(self) -> list[TaskView]:
        """The tasks whose processes agents have started and nobody has seen end."""
        return [one for one in (*self.membership.views, *self.membership.side_views) if one.pid and not one.ended]

    # ---- tasks and their world -------------------------------------------------------------------------------------

    @_on(messages.Join)
    def _join(self, event: messages.Join, now: float) -> None:
        due = self.membership.deadline
        self.membership.join(event.request, now, event.lost)
        # The round has begun or is over. What lies between wakes none, or n joins would wake n^2 times.
        if self.membership.deadline != due or self.membership.outcome(event.request) is not None:
            self._changed += (Topic.ROUND, Topic.TIME)

    @_on(Forsake)
    def _forsake(self, event: Forsake, now: float) -> None:
        del now
        self.membership.forsake(event.task)

    @_on(Admit)
    def _admit(self, event: Admit, now: float) -> None:
        del now
        self.membership.admit(event.task, event.change)

    @_on(CloseAdmission, Topic.ROUND)
    def _close_admission(self, event: CloseAdmission, now: float) -> None:
        del event
        self.membership.close_admission(now)

    @_on(messages.Leave, Topic.ROUND)
    def _leave(self, event: messages.Leave, now: float) -> None:
        self.membership.leave(event.task, now, event.for_good, event.why, ends=event.ends)

    @_on(messages.NodeLeaves, Topic.ROUND)
    def _node_leaves(self, event: messages.NodeLeaves, now: float) -> None:
        self.membership.ask_to_leave(event.tasks, event.why, now, event.change)

    @_on(messages.Done, Topic.ROUND)
    def _done(self, event: messages.Done, now: float) -> None:
        self.membership.done_training(event.task, now, again=event.again)

    @_on(messages.Failing, Topic.ROUND)
    def _failing(self, event: messages.Failing, now: float) -> None:
        self.membership.failing(event.task, event.cause, now)

    @_on(messages.Started)
    def _started(self, event: messages.Started, now: float) -> None:
        self.membership.started(event.task, event.node, event.pid, event.host, now)
        self._began.setdefault(event.task, now)

    @_on(messages.Exited, Topic.ROUND, Topic.ENDS)
    def _exited(self, event: messages.Exited, now: float) -> None:
        if not self.membership.exited(event.record, now):
            return
        task = TaskKey.parse(event.record.task)
        if task in self._began:
            self.durations.setdefault(event.record.task, now - self._began[task])
        self._news.append(JobEvent(exited=event.record))
        if self.membership.training_ended and self.store.get(TRAINING_ENDED) is None:
            self._say(TRAINING_ENDED, True)
            self._news.append(JobEvent(trained=True))

    @_on(messages.Beat)
    def _beat(self, event: messages.Beat, now: float) -> None:
        self.membership.heartbeat(event.task, event.activity, event.info, now, event.said)
        self._stalls.heard(event.task, event.activity, event.info, event.said, now)

    @_on(messages.CountMembers)
    def _count_members(self, event: messages.CountMembers, now: float) -> messages.Members:
        del event, now
        return messages.Members(len(self.membership.members))

    @_on(Tick)
    def _tick(self, event: Tick, now: float) -> None:
        del event
        self._news += (JobEvent(dropped=one) for one in self.membership.expire(now).items())
        self._news += (JobEvent(silent=one) for one in self.membership.find_silent(now, self._silence_limit).items())
        running = {one.task for one in self._running()}
        stall = self._stalls.find([task for task in self.membership.members if task in running], now)
        self._news += [] if stall is None else [JobEvent(stalled=stall)]

    def _announce(self) -> None:
        """Asks the members to meet if a change has made that necessary."""
        pending = self.membership.pending
        if pending > self._announced:
            self._announced = pending
            self._say(PENDING, pending)

    # ---- stacks ----------------------------------------------------------------------------------------------------

    @_on(AskStacks)
    def _ask_stacks(self, event: AskStacks, now: float) -> int:
        del now
        tasks = tuple(one.task for one in self._running() if not event.tasks or one.task in event.tasks)
        number = self._dumps.begin(tasks)
        self._news.append(JobEvent(dump=(number, tasks)))
        return number

    @_on(messages.ReportStacks, Topic.STACKS)
    def _report_stacks(self, event: messages.ReportStacks, now: float) -> None:
        del now
        self._dumps.add(event.number, event.stacks)

    @_on(EndDump)
    def _end_dump(self, event: EndDump, now: float) -> tuple[messages.DumpedTask, ...]:
        found, snapshot = self._dumps.end(event.number), self.snapshot(now, 0.0)
        return tuple(
            _dumped(view, snapshot.rank_of(view), found[view.task]) for view in self._running() if view.task in found
        )

    # ---- values ----------------------------------------------------------------------------------------------------

    @_on(messages.Put)
    def _put(self, event: messages.Put, now: float) -> messages.Stored:
        del now
        return messages.Stored(self._set(event.key, event.value))

    @_on(messages.Get)
    def _get(self, event: messages.Get, now: float) -> None:
        """Starts to watch the heartbeats of the process that will put the value there."""
        if event.presence is not None and not self._has_forgotten(event.presence.name):
            self._processes.expect(event.presence.name, now)

    @_on(messages.Remove)
    def _remove(self, event: messages.Remove, now: float) -> None:
        """The number of segments first, so that no reader finds half of them."""
        del now
        count = len(self.segments(event.name) or ())
        self.store.remove(blobs.count_key(event.name))
        for index in range(count):
            self.store.remove(blobs.segment_key(event.name, index))

    def _set(self, key: str, value: object) -> int:
        version = self.store.put(key, value)
        self._changed.append(StoreKey(key))
        node = node_of(key, end_key)
        if node is not None:
            self._end_node(node)
        return version

    def _say(self, key: str, value: object) -> None:
        with suppress(Refusal):  # the store is full; not the caller's fault
            self._set(key, value)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    @_on(messages.Enroll, Topic.NODES)
    def _enroll(self, event: messages.Enroll, now: float) -> messages.Enrolled:
        del now
        return messages.Enrolled(self.nodes.add(event.token, event.facts))

    @_on(messages.Alive)
    def _alive(self, event: messages.Alive, now: float) -> None:
        self.membership.check_known(beat.task for beat in event.beats)  # all or none
        self._processes.heard(event.name, now)
        for beat in event.beats:
            self._beat(beat, now)

    @_on(messages.FindGone)
    def _find_gone(self, event: messages.FindGone, now: float) -> messages.Gone:
        return messages.Gone(tuple(number for number in event.nodes if self._has_gone(number, event.limit, now)))

    def _has_gone(self, number: int, limit: float, now: float) -> bool:
        name = node_name(number)
        if self._has_forgotten(name) or self.store.get(end_key(number)) is not None:
            return True
        self._processes.expect(name, now)
        return self._processes.is_silent(Presence(name, limit, limit), now)

    def _has_forgotten(self, name: str) -> bool:
        """True if this is the name of a node that has ended so long ago that nothing is known of it any longer."""
        number = node_of(name, node_name)
        return number is not None and number < self.nodes.count and number not in self.nodes

    def _end_node(self, number: int) -> None:
        """Notes the end of a node, and forgets the oldest of the ended nodes if there are too many."""
        oldest = self.nodes.end(number)
        if oldest is None:
            return
        self._processes.forget(node_name(oldest))
        self.store.remove(end_key(oldest))
        for order in itertools.count():
            key = item_key(orders_key(oldest), order)
            if self.store.get(key) is None:
                break
            self.store.remove(key)

    @_on(messages.Show)
    def _show(self, event: messages.Show, now: float) -> None:
        del now
        self.output.add(event.piece)


def _dumped(view: TaskView, rank: int | None, stacks: TaskStacks | None) -> messages.DumpedTask:
    counts = {name: value for name, value in view.info.items() if isinstance(value, int)}
    in_collective = counts.get("pending", 0) > 0
    about = view.task, rank, view.host or view.node, in_collective, counts.get("completed", 0)
    return messages.DumpedTask(*about, stacks)
