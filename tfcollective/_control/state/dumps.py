"""The dumps of a job that have been asked for and are not complete, or not fetched yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from tfcollective._base.stacks import TaskStacks
from tfcollective._base.tasks import TaskKey


class Dumps:
    """Stacks by dump and task. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, dict[TaskKey, TaskStacks | None]] = {}

    def begin(self, tasks: Iterable[TaskKey]) -> int:
        """Begins a dump of these tasks; returns its number."""
        number = next(self._numbers)
        self._open[number] = dict.fromkeys(tasks)
        return number

    def add(self, number: int, stacks: TaskStacks) -> None:
        """Adds the stacks of one task. Those that nobody waits for are dropped."""
        dump = self._open.get(number, {})
        if stacks.task in dump:
            dump[stacks.task] = stacks

    def missing(self, number: int) -> tuple[TaskKey, ...]:
        """The tasks of this dump whose stacks have not come."""
        return tuple(task for task, stacks in self._open[number].items() if stacks is None)

    def end(self, number: int) -> Mapping[TaskKey, TaskStacks | None]:
        """Ends this dump; returns what has come."""
        return self._open.pop(number)
