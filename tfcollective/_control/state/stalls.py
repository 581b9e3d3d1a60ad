"""Finds ranks for which others wait: pure, from what heartbeats say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tfcollective._base.tasks import TaskKey

_LONGEST_GAP = 5.0  # of the time between two heartbeats, more does not count: the process may have been stopped
_BROKEN = "broken"  # the activity of a rank whose communicator has ended with an error


@dataclass(frozen=True)
class Stall:
    """Ranks that wait in operations, and those that have begun none.

    Attributes:
        waiting: the members that wait.
        missing: the others.
        seconds: how long the first one has waited.
    """

    waiting: tuple[TaskKey, ...]
    missing: tuple[TaskKey, ...]
    seconds: float


@dataclass
class _Progress:
    """A rank since its newest operation that has ended; ``said`` is the time of its host."""

    mark: object
    said: float
    heard: float
    waits: bool
    waited: float = 0.0


class Stalls:
    """Judges the progress of the members of the world by their heartbeats. Not thread-safe.

    Args:
        limit: how long (s) a rank may wait in one operation; 0: for ever.
    """

    def __init__(self, limit: float = 0.0) -> None:
        self._limit = limit
        self._progress: dict[TaskKey, _Progress] = {}
        self._told: dict[TaskKey, object] = {}  # the marks of those that waited in the stall that was told last

    def heard(self, task: TaskKey, activity: str, info: Mapping[str, object], said: float, now: float) -> None:
        """Notes a heartbeat, ``said`` at this time of its host. What a rank says after a failure is no progress."""
        pending, last = info.get("pending"), self._progress.get(task)
        if not isinstance(pending, int) or activity == _BROKEN:
            return
        mark = info.get("generation"), info.get("completed"), pending > 0
        new = _Progress(mark, said, now, pending > 0)
        if last is not None and last.mark == mark and said >= last.said:
            new.waited = last.waited + min(said - last.said, _LONGEST_GAP)
        self._progress[task] = new

    def find(self, members: Collection[TaskKey], now: float) -> Stall | None:
        """A stall that has not been told yet: some members have waited for too long, others do not wait."""
        stall = self._look(members, now)
        if stall is None or self.lasts(stall.waiting):
            return None
        self._told = {task: self._progress[task].mark for task in stall.waiting}
        return stall

    def lasts(self, members: Collection[TaskKey]) -> bool:
        """True if one of these members still waits as it did when the last stall was told."""
        return any(task in members and self._progress[task].mark == mark for task, mark in self._told.items())

    def _look(self, members: Collection[TaskKey], now: float) -> Stall | None:
        if not self._limit or any(task not in self._progress for task in members):
            return None
        known = {task: self._progress[task] for task in members}
        waiting = {task: one.waited for task, one in known.items() if one.waits and now - one.heard < self._limit}
        missing = tuple(task for task in members if task not in waiting)
        longest = max(waiting.values(), default=0.0)
        return Stall(tuple(waiting), missing, longest) if missing and longest >= self._limit else None
