"""Decides which processes an elastic job starts next, which it asks to leave, and which hosts it avoids: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._launch.plan.hosts import Host


@dataclass(frozen=True, order=True)
class Slot:
    """A place for one process: the ``number``-th of ``host``, from 0 on."""

    host: str
    number: int


@dataclass(frozen=True)
class Changes:
    """The next changes: slots in which to start a process, and tasks to ask to leave."""

    start: tuple[Slot, ...] = ()
    leave: tuple[TaskKey, ...] = ()


def next_changes(
    hosts: Sequence[Host],
    most: int,
    running: Mapping[TaskKey, Slot],
    *,
    leaving: Collection[TaskKey] = (),
    members: Sequence[TaskKey] = (),
    blocked: Collection[str] = (),
    given_up: Collection[Slot] = (),
) -> Changes:
    """Returns the changes from the running processes to one in each slot, host by host, ``most`` at most.

    A process whose slot is gone is asked to leave, so of a host with fewer slots the highest go. While processes start
    that are to take over, the first member stays for so long: without a member no rank would have the state.

    Args:
        hosts: those with slots, in the order in which they came.
        most: how many processes there may be.
        running: the processes, with those that start, and their slots.
        leaving: those of them that have been asked to leave. They have their slots until they end.
        members: the tasks of the world, in the order of their ranks.
        blocked: hosts on which nothing is started now.
        given_up: slots in which nothing is started: their processes left because they were to.
    """
    slots = {host.name: host.slots for host in hosts}
    staying = [task for task in running if task not in leaving]
    outside = [task for task in staying if running[task].number >= slots.get(running[task].host, 0)]
    room = most - (len(staying) - len(outside))
    taken = {*running.values(), *given_up}
    free = (Slot(host.name, number) for host in hosts if host.name not in blocked for number in range(host.slots))
    start = tuple(slot for slot in free if slot not in taken)[: max(0, room)]
    keeper = _keeper(staying, outside, members) if start or len(staying) > len(outside) else None
    # The largest world has no room for both if it is of one rank.
    leave = [task for task in outside if task != keeper or most == 1]
    return Changes(start, tuple(leave))


def _keeper(staying: Sequence[TaskKey], outside: Sequence[TaskKey], members: Sequence[TaskKey]) -> TaskKey | None:
    """Returns the first member if none of the staying tasks has a slot, else None."""
    here = set(staying).intersection(members)
    return next(task for task in members if task in here) if here and here.issubset(outside) else None


def in_order_of_arrival(known: Sequence[Host], found: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts that are there now: those that were there before in their order, then the new ones."""
    now = {host.name: host for host in found}
    before = [now.pop(host.name) for host in known if host.name in now]
    return (*before, *now.values())


def blocked_for(failures: int) -> float:
    """Returns how long (s) a host is avoided after so many failures there: not at all after the first."""
    return 0.0 if failures < 2 else min(TIMING.longest_block, TIMING.first_block * 2.0 ** (failures - 2))


@dataclass
class _Row:
    """Failures in a row on one host."""

    count: int = 0
    at: float = 0.0  # when the last one was counted


class Blocks:
    """The hosts that are avoided for a while, because processes failed there. Not thread-safe.

    A process that has trained for a while shows that its host can run ranks: that it is lost is no reason not to start
    another one there. One that never gets so far is such a reason. Those that were started before another one of them
    failed say it only once: they had the same cause, or were the same try.

    Args:
        cooldown: how long (s) after the first failure, which doubles with each further one, and how long at most; all
            failures count then. None: see :func:`blocked_for`.
        proven: how long (s) a process has trained that shows that its host can run ranks.
    """

    def __init__(self, cooldown: tuple[float, float] | None = None, proven: float = TIMING.proven) -> None:
        self._cooldown = cooldown
        self._proven = proven
        self._rows: dict[str, _Row] = {}
        self._until: dict[str, float] = {}

    def failed(self, host: str, now: float, *, started: float, trained: float) -> float:
        """A process has failed there that was started at this time, on the clock of ``now``, and has trained for so
        long (s); 0: not at all. For how long (s) nothing is started there because of it."""
        row = self._rows.get(host)
        if self._cooldown is None and trained >= self._proven:
            self._rows.pop(host, None)
            return 0.0
        if row is not None and started <= row.at:
            return 0.0
        return self._count(host, now, 1)

    def lost(self, host: str, now: float) -> float:
        """The whole host has failed, or its agent: that counts as a second failure at least."""
        return self._count(host, now, 2)

    def _count(self, host: str, now: float, least: int) -> float:
        row = self._rows.setdefault(host, _Row())
        row.count, row.at = max(row.count + 1, least), now
        pause = blocked_for(row.count)
        if self._cooldown is not None:
            shortest, longest = self._cooldown
            pause = min(longest, shortest * 2.0 ** min(row.count - 1, 20))
        if pause:
            self._until[host] = now + pause
        return pause

    def clear(self, host: str) -> None:
        """Forgets the failures on this host."""
        self._rows.pop(host, None)
        self._until.pop(host, None)

    def failures(self, host: str) -> int:
        """Returns the number of failures in a row."""
        row = self._rows.get(host)
        return 0 if row is None else row.count

    def blocked(self, now: float) -> frozenset[str]:
        """The hosts on which nothing is started at this time."""
        self._until = {host: end for host, end in self._until.items() if end > now}
        return frozenset(self._until)

    def next_end(self) -> float | None:
        """The end of the first of the blocks that :meth:`blocked` has found."""
        return min(self._until.values(), default=None)
