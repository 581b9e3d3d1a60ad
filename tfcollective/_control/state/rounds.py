"""A pure state machine: which tasks form the next world, and when. It takes the time as an argument, does no I/O.

A *round* gathers the tasks of the next world. It ends in a :class:`~tfcollective._base.topology.World` of the next
generation, or in a :class:`Failed` that all who wait receive. The first world waits for all tasks. Every later one
waits for the members of the last one that still live, and takes in what else has joined: nothing that has yet to
start is waited for while others could train.

A job of fixed size is the one in which the smallest and the largest world are the same, and nothing replaces a task.
See docs/design/elastic.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Member, World
from tfcollective._base.verdict import Rules
from tfcollective._control.messages import JoinRequest
from tfcollective._control.state.causes import Bundles, CountedChanges

NO_LIMIT = 1 << 30  #: as the largest size of a world: all that come


@dataclass(frozen=True)
class Bounds:
    """Bounds on the size of a job's worlds and on its waits for ranks.

    Attributes:
        smallest: fewer form no world.
        first: how many the first one waits for, as long as the start timeout allows.
        largest: further tasks that join wait until there is room; from :data:`NO_LIMIT` on there always is.
        shortage: how long (s) too few tasks wait for others; 0: nothing replaces a task that has ended.
        slow: how long (s) members that have come to a later world wait for those that have not; 0: as long as for the
            first one.
        changes: how often the world may change, as :class:`CountedChanges` counts; None: forever.
        outlasts_errors: whether a task that ends by an error of the program is lost as others are, and replaced; else
            there is no next world.
    """

    smallest: int
    first: int
    largest: int
    shortage: float = 0.0
    slow: float = 0.0
    changes: int | None = None
    outlasts_errors: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.first <= self.largest or min(self.shortage, self.slow) < 0:
            raise ValueError(f"a job has bounds with 0 < smallest <= first <= largest, got {self}")

    @classmethod
    def fixed(cls, size: int) -> Bounds:
        """Returns the bounds of a fixed-size job."""
        return cls(size, size, size)

    @property
    def replaces(self) -> bool:
        """True if another task may take the place of one that has ended."""
        return self.shortage > 0

    @property
    def rules(self) -> Rules:
        """The rules for which failures the job outlasts."""
        return Rules(self.replaces, self.outlasts_errors)


class Failure(Enum):
    """The reason why there is no next world."""

    ENDED = "ended"  # tasks have ended, and too few are left
    LATE = "late"  # tasks have not joined in time
    PROGRAM = "program"  # a task has ended by an error of the program: another one in its place would, too
    OVER = "over"  # no member is left, and one has ended well: there is nothing left to do
    LIMIT = "limit"  # the world has changed as often as it may
    LEFT = "left"  # all have gone before the first world, some of them in order
    NO_SURVIVOR = "no survivor"  # of the last world no member is left that could give the others its state


@dataclass(frozen=True)
class Failed:
    """A round that has ended without a world; ``missing`` are the tasks that it waited for."""

    why: Failure
    missing: tuple[TaskKey, ...] = ()


class Absence(Enum):
    """The reason why a task is in no later world."""

    ENDED = "ended"  # its process is gone
    LEAVING = "leaving"  # it goes in order
    LATE = "late"  # it did not come to a round, while others waited
    CUT_OFF = "cut off"  # the same, and a peer has seen its connection end
    OVERTAKEN = "overtaken"  # it came to a round when rank 0 had completed the training that it was still in


class Rounds:
    """The world of a job and the gathering of the next one. Not thread-safe.

    Args:
        tasks: what the first world waits for, in the order of its ranks.
        bounds: how many ranks a world may have.
        timeout: how long (s) a round may take from the first task that joins on, of a change from the first member on,
            unless the bounds say so.
        first_generation: of the first world.
        cut_off: how long (s) a member may still come after a peer has seen its connection end.
        longest_gap: while there is a :attr:`deadline`, :meth:`expire` is called more often than this (s). A longer time
            between two calls of any method does not count: this process was stopped, and has yet to hear what was said.
    """

    def __init__(
        self,
        tasks: Sequence[TaskKey],
        bounds: Bounds,
        timeout: float,
        first_generation: int = 1,
        cut_off: float = TIMING.cut_off,
        longest_gap: float = math.inf,
    ) -> None:
        self._bounds = bounds
        self._timeout = timeout
        self._cut_off = cut_off
        self._longest_gap = longest_gap
        self._seen = 0.0  # the time of the last call
        self._stopped = 0.0  # how much of the time until then does not count
        self._generation = first_generation - 1
        self._changes = CountedChanges(bounds.changes)
        self._bundles = Bundles(TIMING.bundle)
        self._admits = True  # further tasks
        self._numbers = {task: number for number, task in enumerate(tasks)}  # by admission
        # What the next world waits for. Each join looks at counts alone: n joins may not look at n tasks each.
        self._required: dict[TaskKey, None] = dict.fromkeys(tasks)
        self._waiting: dict[TaskKey, JoinRequest] = {}  # has joined, by the order of joining
        self._absent: dict[TaskKey, Absence] = {}
        self._asked: set[TaskKey] = set()  # to leave when they come next
        self._suspected: dict[TaskKey, float] = {}  # required, and a peer has seen its connection end: since when
        self._began: float | None = None  # the round
        self._short_since: float | None = None
        self._world: World | None = None
        self._members: frozenset[TaskKey] = frozenset()
        self._done: set[TaskKey] = set()  # of them: has completed the training, as far as it has said
        self._completed: Counter[TaskKey] = Counter()  # trainings, by members of this world
        self._staying = 0  # how many of them are not absent
        self._joiners = 0  # how many wait that are none of them
        self._failed: Failed | None = None

    @property
    def world(self) -> World | None:
        """The world of the current generation; None before the first."""
        return self._world

    @property
    def failed(self) -> Failed | None:
        """The reason why there is no next world; stays once set."""
        return self._failed

    @property
    def missing(self) -> tuple[TaskKey, ...]:
        """The tasks that the round waits for, by the order of admission."""
        return tuple(sorted(self._required, key=self._numbers.__getitem__))

    @property
    def waiting(self) -> int:
        """The number of tasks that have joined and wait."""
        return len(self._waiting)

    @property
    def began(self) -> bool:
        """True once a task has come to the round that others wait for, or that waits for others."""
        return self._began is not None

    @property
    def deadline(self) -> float | None:
        """The end of the next wait, if all time until then counts; None: nothing is waited for."""
        due = self._due
        return None if due is None else due + self._stopped

    @property
    def _due(self) -> float | None:
        if self._failed is not None:
            return None
        times = [seen + self._cut_off for seen in self._suspected.values()] if self._suspected else []
        if self._began is not None:
            times.append(self._began + self._limit)
        if self._short_since is not None:
            times.append(self._short_since + self._bounds.shortage)
        if self._bundles.until is not None:
            times.append(self._bundles.until)
        return min(times, default=None)

    @property
    def _limit(self) -> float:
        """The limit (s) of a round. For a change, it is as long as that of an operation: a member that meanwhile
        computes, evaluates or saves would be as late there."""
        return self._timeout if self._world is None else self._bounds.slow or self._timeout

    @property
    def trained(self) -> bool:
        """True if rank 0 has completed the training and has begun no other: nothing has to be replaced or added."""
        return self._world is not None and self._world.members[0].task in self._done

    @property
    def completed(self) -> frozenset[TaskKey]:
        """The members that have completed the training, and have not failed since."""
        return frozenset(self._done)

    @property
    def pending(self) -> int:
        """The generation for which the members have to meet although nothing has failed; 0: none.

        It is the next one when a task waits for which there is room, and for no other one that is about to come, or a
        member goes or is gone.
        """
        if self._world is None or self._failed is not None or self.trained:
            return 0
        gone = self._staying < len(self._members) or any(task in self._members for task in self._asked)
        room = self._staying < self._bounds.largest
        return self._generation + 1 if gone or (room and self._joiners > self._bundles.held) else 0

    def absence(self, task: TaskKey) -> Absence | None:
        """The reason why this task is in no later world; None: it may be in one."""
        return self._absent.get(task)

    def is_waiting(self, task: TaskKey) -> bool:
        """True if the task has joined the round."""
        return task in self._waiting

    def request_of(self, task: TaskKey) -> JoinRequest | None:
        """The request with which the task has joined the round; None if it has not."""
        return self._waiting.get(task)

    def admit(self, task: TaskKey, change: int = 0) -> None:
        """A task that takes part from now on, in place of another or as one more. A first world waits for it, a later
        one does not. ``change``: the number of the decision by which it was started; 0: it is the only one."""
        if task in self._numbers:
            raise ValueError(f"{task} takes part already")
        self._numbers[task] = len(self._numbers)
        self._changes.started(task, change)
        if self._world is None:
            self._required[task] = None
        else:
            self._bundles.started(task, change)

    def close_admission(self, now: float) -> None:
        """Admits no further tasks: too few ranks now wait only for tasks that are admitted and have yet to join."""
        self._admits = False
        if self._short_since is not None:
            self._settle(now)
        self._give_up_untrained()

    def join(self, request: JoinRequest, now: float) -> None:
        """A task that takes part joins the round; it must not have been given up, or be leaving. A member that is in a
        training which rank 0 has completed is given up (:attr:`Absence.OVERTAKEN`)."""
        now = self._counted(now)
        task = request.task
        self._done.discard(task)
        if self._absent.pop(task, None) is not None and task in self._members:
            self._staying += 1  # another process of a task whose first one has ended
        if task not in self._waiting and task not in self._members:
            self._joiners += 1
            self._bundles.ready(task, now)
        self._waiting[task] = request
        self._required.pop(task, None)
        self._suspected.pop(task, None)
        if self._began is None and (self._world is None or task in self._members):
            self._began = now
        self._give_up_overtaken()
        self._settle(now)

    def withdraw(self, task: TaskKey) -> JoinRequest | None:
        """Takes a silent task that waits, but is no member, out of the round: it is in no world until it joins again.
        Returns its request; None if it had not joined."""
        if task in self._members or task not in self._waiting:
            return None
        request = self._waiting.pop(task)
        self._joiners -= 1
        if self._world is None:
            self._required[task] = None  # the first world waits for all
            self._break_off()
        else:
            self._bundles.gone([task], ready=True)
        return request

    def done(self, task: TaskKey, now: float) -> None:
        """A member has completed the training; no round waits for it, unless it trains :meth:`again`. Where it is rank
        0, members that wait in a round give up what they cannot complete without it."""
        now = self._counted(now)
        if task not in self._members or task in self._absent or task in self._done:
            return
        self._done.add(task)
        self._completed[task] += 1
        self._required.pop(task, None)
        self._suspected.pop(task, None)
        self._give_up_overtaken()
        self._settle(now)

    def again(self, task: TaskKey) -> None:
        """A member that was :meth:`done` trains once more."""
        if task in self._done:
            self._done.remove(task)
            self._required[task] = None

    def ended(self, task: TaskKey, now: float, *, well: bool = False) -> None:
        """Notes the end of its process; ``well``: with exit code 0. A task that has failed has completed nothing."""
        now = self._counted(now)
        if not well:
            self._done.discard(task)
        self._drop(task, Absence.LEAVING if task in self._asked else Absence.ENDED)
        self._settle(now)
        self._break_off()
        self._give_up_without_state()
        self._give_up_untrained()

    def end(self, why: Failure) -> None:
        """Ends the job's rounds: there is no next world."""
        if self._failed is None:
            self._fail(why)

    def leaves(self, task: TaskKey, now: float) -> None:
        """Marks the task as leaving gracefully: no round waits for it. If the round waits for it already, it may go."""
        now = self._counted(now)
        if task not in self._absent:
            self._drop(task, Absence.LEAVING)
            self._settle(now)
            self._break_off()
            self._give_up_without_state()

    def steps_out(self, task: TaskKey, now: float) -> None:
        """A member has left its world, and its process is about to end: no round waits for that."""
        now = self._counted(now)
        if task in self._members and task not in self._waiting:
            self._required.pop(task, None)
            self._suspected.pop(task, None)
            self._settle(now)

    def ask_to_leave(self, task: TaskKey, now: float, change: int = 0) -> None:
        """Asks the task to leave when the members next come together, with its work until then complete. A task that
        waits in a round has nothing to complete. ``change``: as for :meth:`admit`."""
        self._changes.leaves(task, change)
        if task in self._waiting:
            self.leaves(task, now)
        elif task not in self._absent:
            self._asked.add(task)

    def suspect(self, task: TaskKey, now: float) -> None:
        """A peer has seen the end of its connection. Its host may be cut off, or its process be gone already."""
        now = self._counted(now)
        if task in self._required and self._bounds.replaces:
            self._suspected.setdefault(task, now)

    def expire(self, now: float) -> tuple[TaskKey, ...]:
        """Ends the waits whose time is over; returns the members that are not waited for any longer, and whose
        processes must not go on."""
        now = self._counted(now)
        if self._failed is not None:
            return ()
        self._bundles.expire(now)
        cut_off = [task for task, seen in self._suspected.items() if now >= seen + self._cut_off]
        for task in cut_off:
            self._drop(task, Absence.CUT_OFF)
        late: list[TaskKey] = []
        if self._began is not None and now >= self._began + self._limit:
            if len(self._waiting) < self._bounds.smallest and (self._world is None or not self._bounds.replaces):
                self._fail(Failure.LATE)
                return tuple(cut_off)
            late = [task for task in self._required if task in self._members]
            for task in late:
                self._drop(task, Absence.LATE)
            self._required.clear()  # of a first world: it may still join the next one
            self._began = None
        self._settle(now)
        return (*cut_off, *late)

    @property
    def stopped(self) -> float:
        """The time (s) up to the newest call that does not count."""
        return self._stopped

    def _counted(self, now: float) -> float:
        """The time without that in which this process was stopped."""
        if now - self._seen > self._longest_gap:
            self._stopped += now - self._seen
        self._seen = now
        return now - self._stopped

    def _give_up_overtaken(self) -> None:
        """Drops the waiting members that have completed fewer trainings than rank 0, which has no more to do: the last
        training is complete, and they cannot make up the part that they missed without the others."""
        if self._world is None or not self.trained:
            return
        completed = self._completed[self._world.members[0].task]
        for task in [one for one in self._waiting if one in self._members and self._completed[one] < completed]:
            self._drop(task, Absence.OVERTAKEN)
        self._break_off()

    def _drop(self, task: TaskKey, why: Absence) -> None:
        if task in self._members and task not in self._absent:
            self._staying -= 1
        if self._absent.get(task) not in (Absence.OVERTAKEN, Absence.LEAVING):
            self._absent[task] = why
        self._asked.discard(task)
        self._required.pop(task, None)
        waited = self._waiting.pop(task, None) is not None
        if waited and task not in self._members:
            self._joiners -= 1
        self._bundles.gone([task], ready=waited)
        self._suspected.pop(task, None)

    def _settle(self, now: float) -> None:
        """Ends the round if it can be decided."""
        if self._failed is not None or (self._began is None and not self._waiting):
            return
        stands_still = self._world is None or not self._members.isdisjoint(self._waiting)
        if not stands_still and self._staying and (self.trained or not self._required):
            self._short_since = None  # the members have no more to do, or train again: newcomers wait until then
            return
        if len(self._waiting) + len(self._required) < self._bounds.smallest:
            self._fall_short(now)
            return
        self._short_since = None
        if self._required:
            return
        early = self._began is not None and now < self._began + self._limit
        if self._world is None and len(self._waiting) < self._bounds.first and early:
            return  # others may be admitted yet
        if not stands_still:
            self._fail(Failure.OVER if self.trained else Failure.NO_SURVIVOR)
            return
        tasks = self._next_tasks()
        if self._world is not None:
            joined = [task for task in tasks if task not in self._members]
            if not self._changes.add(joined, self._members.difference(tasks)):
                self._fail(Failure.LIMIT)
                return
        self._form(tasks)

    def _break_off(self) -> None:
        """Cancels a round if the tasks that began it have gone: the others may be training, and need not come."""
        if len(self._waiting) == (0 if self._world is None else self._joiners):
            self._began = None
            self._suspected.clear()  # the task that reported them has gone, and may itself have been cut off
            if not self._waiting:
                self._short_since = None

    def _give_up_without_state(self) -> None:
        """Fails once all members are gone: newcomers would have no state to take."""
        if self._world is not None and self._bounds.replaces and not self._staying and self._failed is None:
            self._fail(Failure.OVER if self.trained else Failure.NO_SURVIVOR)

    def _give_up_untrained(self) -> None:
        """Fails if nothing has been trained and nothing will be: tasks that have left end well, but the job has done
        nothing."""
        over = self._world is None and not self._admits and len(self._absent) == len(self._numbers)
        if over and Absence.LEAVING in self._absent.values() and self._failed is None:
            self._fail(Failure.LEFT)

    def _fall_short(self, now: float) -> None:
        if self._short_since is None:
            self._short_since = now
        if now >= self._short_since + self._bounds.shortage or not self.others_may_come:
            self._fail(Failure.ENDED)

    @property
    def others_may_come(self) -> bool:
        """True if the admitted tasks, with those that may still be admitted, can be enough for a world."""
        return self._admits or len(self._numbers) - len(self._absent) >= self._bounds.smallest

    def _fail(self, why: Failure) -> None:
        self._failed = Failed(why, self.missing)
        self._began = self._short_since = None
        self._suspected.clear()

    def _form(self, tasks: Sequence[TaskKey]) -> None:
        self._generation += 1
        requests = [self._waiting.pop(task) for task in tasks]
        members = (
            Member(request.task, rank, request.node, request.pid, request.address)
            for rank, request in enumerate(requests)
        )
        self._world = World(self._generation, tuple(members))
        self._bundles.gone(tasks, ready=True)
        self._members = frozenset(tasks)
        self._required = dict.fromkeys(tasks)
        self._done.clear()
        self._completed.clear()
        self._staying, self._joiners = len(tasks), len(self._waiting)
        self._began = None

    def _next_tasks(self) -> list[TaskKey]:
        """Survivors in the order of their ranks, then newcomers: the first to join come in, by the order of
        admission. So rank 0 is a survivor, which has the state that the others take."""
        last: Iterable[Member] = () if self._world is None else self._world.members
        survivors = [member.task for member in last if member.task in self._waiting]
        joiners = [task for task in self._waiting if task not in self._members]
        taken = joiners[: self._bounds.largest - len(survivors)]
        return [*survivors, *sorted(taken, key=self._numbers.__getitem__)]
