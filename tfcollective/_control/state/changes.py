"""The changes of a job's world after its first one: pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import World
from tfcollective._control.snapshot import PHASES_AFTER, WorldChange

_Cause = Callable[[Sequence[TaskKey]], str]


class WorldChanges:
    """The changes so far, and the one that is under way. Not thread-safe."""

    def __init__(self) -> None:
        self._changes: list[WorldChange] = []
        self._after: dict[int, dict[str, float]] = {}  # generation -> phase -> seconds
        self._under_way: float | None = None  # since when the next change is
        self._first_came: float | None = None  # a member, to it

    def __bool__(self) -> bool:
        return bool(self._changes)

    def all(self, cause: _Cause) -> tuple[WorldChange, ...]:
        """Returns all changes; ``cause`` describes losses whose cause was not known when the world formed."""
        return tuple(
            replace(one, after=self._after.get(one.generation, {}), cause=one.cause or cause(one.lost))
            for one in self._changes
        )

    def under_way(self, now: float) -> None:
        """The world is about to change; the first such news counts."""
        if self._under_way is None:
            self._under_way = now

    def first_came(self, now: float) -> None:
        """A member has come to the round; the first one counts."""
        if self._first_came is None:
            self._first_came = now

    def formed(self, world: World, before: Collection[TaskKey], cause: _Cause, now: float) -> None:
        """Records a world that follows one with the tasks ``before``; none: it is the first. ``cause``: see
        :meth:`all`."""
        began, self._under_way = self._under_way, None
        came, self._first_came = self._first_came, None
        if not before:
            return
        tasks = {member.task for member in world.members}
        lost = tuple(task for task in before if task not in tasks)
        joined = tuple(member.task for member in world.members if member.task not in before)
        began = now if began is None else began
        detect = (now if came is None else came) - began
        self._changes.append(
            WorldChange(world.generation, world.size, lost, joined, now - began, cause(lost), now, max(0.0, detect))
        )

    def note_phases(self, said: object) -> None:
        """Records how long a rank took for each phase of entering a world that has formed; the slowest rank counts."""
        generation = said.get("generation") if isinstance(said, Mapping) else None
        newest = self._changes[-1].generation if self._changes else 0
        if not isinstance(said, Mapping) or not isinstance(generation, int) or generation > newest:
            return
        known = dict(self._after.get(generation, {}))  # a new one: views of the job hold the one before
        for name in PHASES_AFTER:
            seconds = said.get(name)
            if isinstance(seconds, int | float):
                known[name] = max(float(seconds), known.get(name, 0.0))
        self._after[generation] = known
