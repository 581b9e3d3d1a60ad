"""The membership of a job: a pure state machine. It takes the time as an argument and does no I/O.

:mod:`tfcollective._control.state.rounds` decides who is in the next world. This module keeps the facts about each task,
and the reason why there is no next world: a :class:`RendezvousFailure` that all waiting tasks receive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcollective._base.clock import LivenessTracker
from tfcollective._base.errors import ConfigError
from tfcollective._base.failures import ErrorKind, ExitRecord
from tfcollective._base.settings import variable
from tfcollective._base.tasks import NO_RANK, TaskKey, trainers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Member, World
from tfcollective._base.verdict import first_cause, first_to_end
from tfcollective._control.messages import JoinRequest, Refusal
from tfcollective._control.snapshot import RendezvousFailure, TaskState, TaskView, WorldChange
from tfcollective._control.state.changes import WorldChanges
from tfcollective._control.state.rounds import Absence, Bounds, Failure, Rounds

_WHY_GONE = {
    Absence.ENDED: "its process has ended",
    Absence.LEAVING: "it was asked to leave",
    Absence.LATE: "it did not come to the others in time when the world changed",
    Absence.CUT_OFF: "its connections had ended, and it did not come when the world changed",
    Absence.OVERTAKEN: "the training that it was in is complete",
}


_NOT_ELASTIC = " (ranks continue after a loss in a function of elastic.run, or in fit with the callback Elastic())"
_TRAINED = RendezvousFailure("training is complete", (), timed_out=False, over=True)


@dataclass(frozen=True)
class LeaveRequest:
    """The answer to a join, in place of a world, if the task's node is preempted: why the task has to leave."""

    why: str


@dataclass(frozen=True)
class _Due:
    """A deadline of a process, and why it is killed if it misses that. ``stopped`` is how much of the time did not
    count when the deadline was set (:attr:`Rounds.stopped`)."""

    at: float
    why: str
    stopped: float


def _joined_already(view: TaskView, request: JoinRequest) -> str:
    if view.node == request.node and view.pid in request.ancestors:
        return (
            f"this process ({request.pid}) was started by {request.task} itself (process {view.pid}), which has joined "
            "already: put init() under if __name__ == '__main__', where processes that a rank starts do not call it"
        )
    return (
        f"{request.task} has joined already: process {view.pid} on node {view.node}. Two processes have the same task, "
        f"or two jobs meet at this address: then give each job a {variable('job_id')} and a "
        f"{variable('rendezvous')}=HOST:PORT of its own, the same on all its ranks"
    )


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
        bounds: Bounds | None = None,
    ) -> None:
        ordered = trainers(tasks)
        if not ordered or len(set(ordered)) != len(tasks):
            raise ConfigError("a job needs trainers, each once")
        self._views = {task: TaskView(task, rank) for rank, task in enumerate(ordered)}
        self._side_views = {task: TaskView(task, NO_RANK) for task in auxiliary_tasks}
        self._start_timeout = start_timeout
        self._bounds = bounds or Bounds.fixed(len(ordered))
        self._rounds = Rounds(ordered, self._bounds, start_timeout, first_generation, longest_gap=longest_gap)
        self._members: dict[TaskKey, Member] = {}  # of the world
        self._failing: dict[TaskKey, str] = {}  # about to end by this error of the program
        self._overdue: dict[TaskKey, _Due] = {}  # deadlines after which their processes are killed
        self._leavers: dict[TaskKey, str] = {}  # left gracefully, and the others train on -> why
        self._asked: dict[TaskKey, str] = {}  # to leave: their node is preempted -> why
        self._later: set[TaskKey] = set()  # tasks that were admitted while the job ran
        self._changes = WorldChanges()
        self._generation = first_generation - 1  # of the world that the views know
        self._failure: RendezvousFailure | None = None
        self._ended: dict[TaskKey, bool] = {}  # the trainers whose process is gone -> whether it waited in a round
        self._liveness = LivenessTracker[TaskKey](longest_gap)
        self._newcomers = LivenessTracker[TaskKey](longest_gap)  # wait for a later world, or are in their first one
        self._withdrawn: dict[TaskKey, JoinRequest] = {}  # of them: sent no heartbeat
        self._formed = 0.0  # the world: when

    @property
    def world(self) -> World | None:
        """The world of the current generation; None before the first."""
        return self._rounds.world

    @property
    def failure(self) -> RendezvousFailure | None:
        """The reason why the ranks could not meet; stays once set."""
        return self._failure

    @property
    def deadline(self) -> float | None:
        """The time at which :meth:`expire` has to be called, or None."""
        if not self._overdue:  # as a rule, and it is asked around each event
            return self._rounds.deadline
        times = [self._end_of(due) for due in self._overdue.values()]
        if self._rounds.deadline is not None:
            times.append(self._rounds.deadline)
        return min(times, default=None)

    @property
    def views(self) -> tuple[TaskView, ...]:
        """All tasks in the order of their admission: in rank order for a job of fixed size."""
        return tuple(self._views.values())

    @property
    def members(self) -> Sequence[TaskKey]:
        """The tasks of the world, in rank order."""
        return tuple(self._members)

    @property
    def changes(self) -> tuple[WorldChange, ...]:
        """The changes of the world after the first one."""
        return self._changes.all(self._cause)

    @property
    def bounds(self) -> Bounds:
        """The number of ranks that a world may have."""
        return self._bounds

    @property
    def leavers(self) -> Mapping[TaskKey, str]:
        """The tasks that have left for good, in the order in which they left, and why."""
        return dict(self._leavers)

    @property
    def leaving(self) -> Mapping[TaskKey, str]:
        """The tasks that have been asked to leave and have not ended, and why."""
        return {task: why for task, why in self._asked.items() if not self._views[task].ended}

    @property
    def pending(self) -> int:
        """See :attr:`Rounds.pending`."""
        return self._rounds.pending

    @property
    def trained(self) -> bool:
        """See :attr:`Rounds.trained`."""
        return self._rounds.trained

    @property
    def done(self) -> frozenset[TaskKey]:
        """The members of the world that have completed the training, and have not failed since."""
        return self._rounds.completed

    @property
    def side_views(self) -> tuple[TaskView, ...]:
        """The auxiliary tasks."""
        return tuple(self._side_views.values())

    @property
    def training_ended(self) -> bool:
        """True if rank 0's process has ended and no other takes its place: no checkpoint will follow."""
        first = self._views[next(iter(self._members or self._views))]
        if first.task in self._asked and not self._members_have_ended:
            return False  # its program may have ended well because it was to leave: the others show it
        return self._ended_well(first.task) or (first.ended and not self._bounds.replaces)

    @property
    def missing(self) -> tuple[TaskKey, ...]:
        """The tasks that the current round waits for, in rank order."""
        return tuple(task for task in self._views if not self._rounds.is_waiting(task))

    def tells_missing(self, task: TaskKey) -> bool:
        """True if this task logs for whom the ranks wait: only the first of the tasks that wait for the first world
        does, so that the log has one line and not one from each."""
        if self.world is not None:
            return False
        return task == next((one for one in self._views if self._rounds.is_waiting(one)), None)

    @property
    def expects_heartbeats(self) -> bool:
        """True if :meth:`find_silent` may find a silent task, now or later."""
        return bool(self._liveness)

    @property
    def initialised(self) -> bool:
        """True once a task has joined."""
        return self.world is not None or self._rounds.waiting > 0 or self._failure is not None

    def started(self, task: TaskKey, node: str, pid: int, host: str = "", now: float = 0.0) -> None:
        """An agent has started the task's process, which may have joined before the agent's report came. One that takes
        the place of another has to come to ``init()`` within the start timeout: nothing else is started there."""
        view = replace(self._known(task), host=host)
        if view.state is TaskState.EXPECTED:
            view = replace(view, state=TaskState.STARTED, node=node, pid=pid)
            if task in self._later and view.last_heartbeat is None:
                self._set_due(task, now, self._start_timeout, "had not called init() within {:g} s (--start-timeout)")
        self._keep(view)

    def admit(self, task: TaskKey, change: int = 0) -> None:
        """A task that takes part from now on, in addition to the first ones. Its rank follows with the world."""
        self._rounds.admit(task, change)
        self._views[task] = TaskView(task, len(self._views))
        self._later.add(task)

    def close_admission(self, now: float) -> None:
        """See :meth:`Rounds.close_admission`."""
        self._rounds.close_admission(now)
        self._note_round(now)

    def join(self, request: JoinRequest, now: float, lost: int | None = None) -> None:
        """Adds a task to the round; repeating the same request changes nothing. ``lost`` is the rank of the world whose
        connection it has seen end, if it has. Raises Refusal."""
        view = self._known(request.task)
        if request.task in self._side_views:
            raise Refusal(f"{request.task} is outside the world: it cannot join")
        self._check_size(request)
        if request.task in self._asked and not self._is_member(request):
            self.leave(request.task, now, for_good=True)
            return
        if self._failure is not None or self._is_member(request):
            return
        earlier = self._rounds.request_of(request.task)
        if earlier == request:
            return
        why = self._rounds.absence(request.task)
        if why is Absence.OVERTAKEN:
            return
        # In an elastic job another task takes its place. One that has come back though its host was given up has been
        # left by its agent and by its launcher, who would not wait for its end.
        if why not in (None, Absence.ENDED) or (why is not None and self._bounds.replaces):
            raise Refusal(f"{request.task} was removed from the job: {_WHY_GONE[why]}")
        comes_again = self._bounds.replaces and (view.node, view.pid) == (request.node, request.pid)
        if (earlier is not None or view.state is TaskState.RUNNING) and not comes_again:
            raise Refusal(_joined_already(view, request))
        self._has_come(request.task)
        here = replace(view, node=request.node, pid=request.pid, last_heartbeat=now, said=0.0, exit=None)
        self._keep(replace(here, state=TaskState.WAITING))
        # Of one that has been in an earlier world, the number stands for another rank.
        if lost is not None and request.task in self._members and lost in range(len(self._members)):
            self._rounds.suspect(self.members[lost], now)
        if self.trains_without(request.task):
            self._newcomers.heard(request.task, now)
        self._withdrawn.pop(request.task, None)
        self._rounds.join(request, now)
        self._note_round(now)

    def forsake(self, task: TaskKey) -> None:
        """The process of a task that waits for the first world has gone, though no agent has said so: another one may
        join as this task. Where there are agents, the end of a process is theirs to judge."""
        view = self._views.get(task)
        if view is None or self.world is not None or self._bounds.replaces or view.state is not TaskState.WAITING:
            return
        self._rounds.withdraw(task)
        self._keep(replace(view, state=TaskState.EXPECTED, node="", pid=0))

    def trains_without(self, task: TaskKey) -> bool:
        """True if there is a world, and the task is not in it."""
        return self.world is not None and task not in self._members

    def outcome(self, request: JoinRequest) -> World | RendezvousFailure | LeaveRequest | None:
        """The result of a join; None while it waits."""
        if self._is_member(request):
            return self.world
        if request.task in self._asked:
            return LeaveRequest(self._asked[request.task])
        overtaken = self._rounds.absence(request.task) is Absence.OVERTAKEN
        over = self._rounds.failed is not None and self._rounds.failed.why is Failure.OVER
        return _TRAINED if over or overtaken else self._failure

    def check_known(self, tasks: Iterable[TaskKey]) -> None:
        """Raises Refusal unless the job has all these tasks."""
        for task in tasks:
            self._known(task)

    def heartbeat(
        self, task: TaskKey, activity: str, info: Mapping[str, object], now: float, said: float = 0.0
    ) -> None:
        """Notes a heartbeat, with the rank's activity and counts; ``said``: its time on the monotonic clock of its
        host. One that is older than the newest one changes nothing: it has come by a longer way."""
        view = self._known(task)
        if said < view.said:
            return
        # A member of the world runs when the world has formed, an auxiliary task as soon as it says anything.
        state = TaskState.RUNNING if view.rank == NO_RANK and not view.ended else view.state
        # The commonest request: replace() and a key that is equal but not the same would double its cost.
        task, views = view.task, self._side_views if view.rank == NO_RANK else self._views
        kept = view.exit, view.host
        views[task] = TaskView(task, view.rank, state, view.node, view.pid, now, activity, info, said, *kept)
        if task in self._liveness or (task in self._later and not view.ended):
            self._liveness.heard(task, now)
        if self._overdue:
            self._has_come(task)
        if task in self._newcomers:
            self._hear_newcomer(task, info, now)
        if self._changes and "change" in info:
            self._changes.note_phases(info["change"])

    def _hear_newcomer(self, task: TaskKey, info: Mapping[str, object], now: float) -> None:
        self._newcomers.heard(task, now)
        said = info.get("change")
        has_state = isinstance(said, Mapping) and "sync" in said  # it trains, and may be the only one with the state
        if task in self._members and (has_state or now - self._formed >= TIMING.relay):
            self._newcomers.forget(task)  # it has said so since: now it is a member like others
        request = self._withdrawn.pop(task, None)
        if request is not None:
            self._rounds.join(request, now)
            self._note_round(now)

    def find_silent(self, now: float, limit: float) -> Mapping[TaskKey, float]:
        """The members of the world, and the newcomers that have called ``init()``, that have given no heartbeat for
        ``limit`` seconds or longer, and for how long.

        Those that stay silent are found again after ``limit`` seconds: one that was busy may be stopped by then. A
        newcomer is found earlier (:attr:`Timing.newcomer_silent`): the others wait for it while they connect. One that
        still waits is not taken in before it sends a heartbeat.
        """
        late = self._newcomers.silent(TIMING.newcomer_silent, now)
        for task in late:
            request = self._rounds.withdraw(task)
            if request is not None:
                self._withdrawn[task] = request
        new = [task for task in late if task in self._members]
        # Nothing waits for one that is alone, and without it no rank has the state.
        if not new or all(task in late or self._rounds.absence(task) is not None for task in self._members):
            new = []
        for task in new:
            self._newcomers.forget(task)
        members = self._liveness.silent(limit, now)
        for task in members:
            self._liveness.heard(task, now)
        heard = {task: self._views[task].last_heartbeat for task in (*new, *members)}
        return {task: now - at for task, at in heard.items() if at is not None}

    def ask_to_leave(self, tasks: Sequence[TaskKey], why: str, now: float, change: int = 0) -> None:
        """Notes that the node of these tasks is preempted: members of the world leave it when they next meet, and the
        others train on. ``change``: see :meth:`Rounds.admit`."""
        for view in [self._known(task) for task in tasks]:  # all or none
            task = view.task
            if task in self._side_views or view.ended or task in self._asked:
                continue
            self._asked[task] = why
            if self._rounds.is_waiting(task) or self._withdrawn.pop(task, None) is not None:
                self.leave(task, now, for_good=True)
            else:
                self._rounds.ask_to_leave(task, now, change)
        self._note_round(now)

    def leave(self, task: TaskKey, now: float, for_good: bool = False, why: str = "", *, ends: bool = False) -> None:
        """Notes that the task leaves the world gracefully; it may join the next round, unless it goes ``for_good``:
        then the others train on without it, and ``why`` is the reason. ``ends``: its process is about to end, which may
        take seconds; no round waits for it, and its end is judged when it comes."""
        view = self._known(task)
        if for_good:
            self._leavers.setdefault(task, self._asked.get(task) or why)
            self._rounds.leaves(task, now)
            self._note_round(now)
        elif ends and self._bounds.replaces:
            self._rounds.steps_out(task, now)
            self._note_round(now)
        if view.state is TaskState.RUNNING or (task in self._leavers and view.state is TaskState.WAITING):
            self._keep(replace(view, state=TaskState.LEFT, last_heartbeat=now))
            self._liveness.forget(task)
            self._newcomers.forget(task)

    def done_training(self, task: TaskKey, now: float, *, again: bool = False) -> None:
        """A member of the world has completed the training, or, ``again``, begins another one."""
        self._known(task)
        if again:
            self._rounds.again(task)
        else:
            self._rounds.done(task, now)
            self._note_round(now)

    def failing(self, task: TaskKey, cause: str, now: float) -> None:
        """A trainer ends by an error of the program: so does the job, at once, unless the error costs
        this rank alone. A process that hangs on its way out does not keep the others waiting."""
        view = self._known(task)
        goes = task in self._asked or self._rounds.absence(task) is not None
        if task in self._side_views or view.ended or goes:
            return
        if task not in self._failing:
            self._failing[task] = cause
            self._set_due(task, now, TIMING.grace, "had not ended {:g} s after its error")
        if not self._bounds.replaces:
            return
        if self._bounds.outlasts_errors:
            self._rounds.steps_out(task, now)
        else:
            self._rounds.end(Failure.PROGRAM)
        self._note_round(now)

    def exited(self, record: ExitRecord, now: float) -> bool:
        """An agent has seen the end of the task's process. Fails the round if that needs the task. Returns whether that
        is news."""
        task = TaskKey.parse(record.task)
        view = self._known(task)
        if view.ended:
            return False
        self._liveness.forget(task)
        self._newcomers.forget(task)
        self._withdrawn.pop(task, None)
        self._overdue.pop(task, None)
        # One that has left gracefully has done its part, whatever ends its process on its way out.
        failed = record.failed and task not in self._leavers
        state = TaskState.FAILED if failed else TaskState.EXITED
        gone = replace(view, state=state, node=record.node, pid=record.pid, exit=replace(record, seen=now))
        if task in self._side_views:
            self._side_views[task] = gone
            return True
        self._views[task] = gone
        self._ended[task] = self._rounds.is_waiting(task)
        self._judge_end(record)
        self._rounds.ended(task, now, well=not record.failed)
        self._note_round(now)
        return True

    def _judge_end(self, record: ExitRecord) -> None:
        """Ends an elastic job in which no other process can take the place of this one, or that has no more to do."""
        if not self._bounds.replaces:
            return
        if not self._bounds.rules.outlasts(record):
            self._rounds.end(Failure.PROGRAM)
        if self._members and self._members_have_ended and any(self._ended_well(one) for one in self._members):
            self._rounds.end(Failure.OVER)

    @property
    def _members_have_ended(self) -> bool:
        return all(self._views[one].ended for one in self._members)

    def _ended_well(self, task: TaskKey) -> bool:
        """True if its process has completed the training."""
        gone = task in self._leavers or self._rounds.absence(task) is Absence.OVERTAKEN
        return self._views[task].state is TaskState.EXITED and not gone

    def lost_member(self, generation: int) -> tuple[int, str] | None:
        """Returns the rank of a member of that generation's world whose process has ended, and what happened in words.
        If several have, the one whose failure brought about the others'."""
        if self.world is None or self.world.generation != generation or not self._ended:
            return None
        ended = sorted((self._views[task] for task in self._ended if task in self._members), key=lambda view: view.rank)
        if not ended:
            return None
        orderly = [str(view.task) for view in ended if view.state is TaskState.EXITED]
        first = first_to_end([view.exit for view in ended if view.exit is not None], orderly)
        view = self._known(TaskKey.parse(first.task))
        return view.rank, f"rank {view.rank} ({view.task}, pid {view.pid}) {first.how}"

    def expire(self, now: float) -> Mapping[TaskKey, str]:
        """Ends the waits whose time is over. Returns the members that take part no longer, and why: their processes
        must not go on."""
        dropped = self._rounds.expire(now)
        for task in dropped:
            self._keep(replace(self._views[task], state=TaskState.LEFT))
            self._liveness.forget(task)
        self._note_round(now)
        gone = {task: _WHY_GONE[why] for task in dropped if (why := self._rounds.absence(task)) is not None}
        for task in [one for one, due in self._overdue.items() if self._end_of(due) <= now]:
            gone[task] = self._overdue.pop(task).why
        return gone

    def _set_due(self, task: TaskKey, now: float, seconds: float, why: str) -> None:
        self._overdue[task] = _Due(now + seconds, f"{why.format(seconds)}, and was killed", self._rounds.stopped)

    def _end_of(self, due: _Due) -> float:
        return due.at + self._rounds.stopped - due.stopped

    def _has_come(self, task: TaskKey) -> None:
        """Notes that a process has called ``init()``."""
        if task not in self._failing:
            self._overdue.pop(task, None)

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
        if not view.ended:
            self._ended.pop(view.task, None)

    def _check_size(self, request: JoinRequest) -> None:
        if request.size != len(self._views) and not self._bounds.replaces:
            raise Refusal(f"{request.task} expects a world of {request.size} ranks; this job has {len(self._views)}")

    def _is_member(self, request: JoinRequest) -> bool:
        member = self._members.get(request.task)
        if member is None or self._views[request.task].state is not TaskState.RUNNING:
            return False
        return (member.node, member.pid, member.address) == (request.node, request.pid, request.address)

    def _note_round(self, now: float) -> None:
        """Records the result of the round, if it is over."""
        failed, world = self._rounds.failed, self.world
        if failed is not None and self._failure is None and failed.why is not Failure.OVER:
            names = tuple(str(task) for task in self.missing)
            self._failure = RendezvousFailure(self._describe(failed.why), names, failed.why is Failure.LATE)
        if self._members and (self._rounds.pending or self._rounds.began):
            self._changes.under_way(now)
        if self._rounds.began:
            self._changes.first_came(now)
        if world is not None and world.generation != self._generation:
            self._changes.formed(world, self._members, self._cause, now)
            self._formed = now
            for task in [one.task for one in world.members if one.task in self._newcomers]:
                self._newcomers.heard(task, now)
            self._generation = world.generation
            self._members = {member.task: member for member in world.members}
            for task, member in self._members.items():
                here = replace(self._views[task], state=TaskState.RUNNING, last_heartbeat=now)
                self._keep(replace(here, rank=member.rank))
                self._liveness.heard(task, now)

    def _cause(self, lost: Sequence[TaskKey]) -> str:
        """Describes how these tasks were lost; "" until it is known for all of them."""
        known = {task: self._how_gone(task) for task in lost}
        return ", ".join(f"{task} {how}" for task, how in known.items()) if all(known.values()) else ""

    def _how_gone(self, task: TaskKey) -> str:
        """Describes how a task was lost; "": its process has yet to end."""
        if task in self._leavers:
            return f"left: {self._leavers[task]}" if self._leavers[task] else "left"
        record, why = self._views[task].exit, self._rounds.absence(task)
        if record is not None:
            return record.how
        return "" if why is None else f"is gone: {_WHY_GONE[why]}"

    def _describe(self, why: Failure) -> str:
        if why is Failure.LATE:
            count = f"{self._rounds.waiting} of {len(self._views)} tasks joined within {self._start_timeout:g} s"
            return f"{count}; missing: {', '.join(str(task) for task in self.missing)}"
        if self._bounds.replaces or not self._ended:
            return self._describe_end(why)
        view = min((self._views[task] for task in self._ended), key=lambda view: view.rank)
        how = view.exit.how if view.exit is not None else "ended"
        when = (
            "while it waited for the others" if self._ended[view.task] else "before it had joined the job with init()"
        )
        return f"{view.task} (rank {view.rank}, pid {view.pid}) {how} {when}"

    def _gave_up(self) -> bool:
        """True if a rank has ended by an error that reports the loss of another rank: its program did not catch it."""
        ends = [view.exit for view in self._views.values() if view.exit is not None]
        return any(one.failed and one.exception is not None and one.exception.kind is ErrorKind.PEER for one in ends)

    def _describe_end(self, why: Failure) -> str:
        """Describes why the ranks that are left have no next world."""
        ends = [view.exit for view in self._views.values() if view.exit is not None]
        if why is Failure.PROGRAM:  # the others continued without the ranks that were lost before
            ends = [one for one in ends if not self._bounds.rules.outlasts(one)]
        cause = first_cause(ends)
        how = "" if cause is None else f"; first, rank {cause.rank} ({cause.task}, pid {cause.pid}) {cause.how}"
        if self._failing and why is Failure.PROGRAM:
            task, error = next(iter(self._failing.items()))
            view = self._views[task]
            how = f"; first, rank {view.rank} ({task}, pid {view.pid}) failed: {error}"
        if why is Failure.PROGRAM:
            return f"an error of the program ends an elastic job, too{how}"
        if why is Failure.LEFT:
            gone = ", ".join(f"{task} {self._how_gone(task)}" for task in self._views)
            return f"all ranks left the job before the first of them began to train: {gone}"
        if why is Failure.NO_SURVIVOR:
            none = f"of the world of generation {self._generation} no rank is left whose state others could take"
            return f"{none}{_NOT_ELASTIC if self._gave_up() else ''}{how}"
        if why is Failure.LIMIT:
            return f"the world may not change again: --reset-limit is {self._bounds.changes}{how}"
        came = f"came within {self._bounds.shortage:g} s" if self._rounds.others_may_come else "will come"
        waiting = self._rounds.waiting
        left = (
            f"{waiting} {'rank is' if waiting == 1 else 'ranks are'} left, at least {self._bounds.smallest} are needed"
        )
        return f"{left}, and no others {came}{how}"
