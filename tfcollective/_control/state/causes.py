"""Membership changes that have one cause, so that they count once, and newcomers that come together: pure.

A launcher numbers its decisions: the processes that it starts, and those that it asks to leave, because a host has come
or gone, carry the number of that decision. They are seldom ready at the same moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable

from tfcollective._base.tasks import TaskKey

_LATE = "late"  # first tasks that came too late to the first world


class CountedChanges:
    """Counts the changes of the world. Worlds that follow from one decision of the launcher count once; a loss counts
    by itself, and so does a world of the same tasks.

    Args:
        limit: how often it may change; None: forever.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._starts: dict[TaskKey, Hashable] = {}
        self._leaves: dict[TaskKey, Hashable] = {}
        self._counted: set[Hashable] = set()
        self._count = 0

    def started(self, task: TaskKey, change: int) -> None:
        """Notes that this task was started by that decision; 0: by one of its own."""
        self._starts[task] = change or task

    def leaves(self, task: TaskKey, change: int) -> None:
        """Notes that this task was asked to leave by that decision; 0: by one of its own."""
        if change:
            self._leaves[task] = change

    def add(self, joined: Iterable[TaskKey], gone: Iterable[TaskKey]) -> bool:
        """Counts a change to a world with these new tasks and without those. Returns False, and counts nothing, if that
        is one change too many."""
        causes = {self._starts.get(task, _LATE) for task in joined}
        causes |= {self._leaves.get(task, ("gone", task)) for task in gone}
        counts = not causes or not causes <= self._counted
        if counts and self._limit is not None and self._count >= self._limit:
            return False
        self._count += counts
        self._counted |= causes
        return True


class Bundles:
    """Newcomers that were started by one decision: the first of them to be ready waits a moment for the others, so that
    the world changes once.

    Args:
        seconds: how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._change_of: dict[TaskKey, int] = {}
        self._starting: Counter[int] = Counter()  # by decision: how many are not ready, and may be
        self._ready: Counter[int] = Counter()
        self._until: dict[int, float] = {}  # by decision: when the wait of its ready newcomers ends
        self._waited: set[int] = set()  # decisions that have had their wait

    @property
    def held(self) -> int:
        """The number of newcomers that are ready and wait for others."""
        return sum(self._ready[change] for change in self._until)

    @property
    def until(self) -> float | None:
        """The end of the first of these waits; None: no newcomer waits."""
        return min(self._until.values(), default=None)

    def started(self, task: TaskKey, change: int) -> None:
        """Notes that this task was started by that decision; 0: by one of its own."""
        if change:
            self._change_of[task] = change
            self._starting[change] += 1

    def ready(self, task: TaskKey, now: float) -> None:
        """Notes that a task has joined; called once for each."""
        change = self._change_of.get(task)
        if change is None:
            return
        self._starting[change] -= 1
        self._ready[change] += 1
        if self._starting[change] and change not in self._waited:
            self._waited.add(change)
            self._until[change] = now + self._seconds
        elif not self._starting[change]:
            self._until.pop(change, None)

    def gone(self, tasks: Collection[TaskKey], *, ready: bool) -> None:
        """Stops waiting for these tasks: they are in the world, or will never be. ``ready``: they had joined."""
        for task in tasks:
            change = self._change_of.pop(task, None)
            if change is None:
                continue
            (self._ready if ready else self._starting)[change] -= 1
            if not (self._starting[change] and self._ready[change]):
                self._until.pop(change, None)

    def expire(self, now: float) -> None:
        """Ends the waits whose time is over."""
        self._until = {change: end for change, end in self._until.items() if now < end}
