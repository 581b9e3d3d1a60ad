"""The schedule of faults: pure, and the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

__all__ = ["Fault", "FaultKind", "schedule"]


class FaultKind(str, Enum):
    """The kind of a fault. The value is its name in reports."""

    KILL = "kill a rank"
    KILL_FIRST = "kill rank 0"
    KILL_TWO = "kill two ranks"
    KILL_ALLREDUCE = "kill in all-reduce"
    KILL_COMMIT = "kill in commit"
    KILL_SYNC = "kill in sync"
    KILL_CONNECT = "kill in connect"
    KILL_NEWCOMER = "kill a newcomer"
    EXIT = "exit code 3"
    STOP = "stop and continue"
    LEAVE = "SIGTERM"
    HOG = "busy processors"
    SLOW = "slow rank"

    @property
    def ranks(self) -> int:
        """The number of ranks that the world needs so that one remains that has the state."""
        if self in (FaultKind.KILL_TWO, FaultKind.KILL_SYNC, FaultKind.KILL_CONNECT, FaultKind.LEAVE):
            return 3
        return 2 if self.ends_a_rank else 1

    @property
    def ends_a_rank(self) -> bool:
        """True if the fault ends a rank."""
        return self not in (FaultKind.HOG, FaultKind.SLOW, FaultKind.STOP)


@dataclass(frozen=True)
class Fault:
    """A disturbance.

    Attributes:
        number: its place in the schedule.
        at: seconds from the first step of the job.
        kind: what is done.
        victim: which of the ranks that can be chosen, from 0 to 1.
        moment: how far into what it interrupts, or how long of what is possible, from 0 to 1.
    """

    number: int
    at: float
    kind: FaultKind
    victim: float
    moment: float


def schedule(seed: int, seconds: float, every_s: float, leaves: int = 0) -> tuple[Fault, ...]:
    """The faults of a run: at random times, `every_s` apart on average; each kind as often as the others.

    Args:
        seed: the same seed gives the same faults.
        seconds: none comes later.
        leaves: how often a rank is asked to leave at most: it is not replaced.
    """
    source = random.Random(seed)  # noqa: S311  no secret
    deck: list[FaultKind] = []
    found: list[Fault] = []
    at = source.expovariate(1 / every_s)
    while at < seconds:
        if not deck:
            deck = [kind for kind in FaultKind if kind is not FaultKind.LEAVE or leaves > 0]
            leaves -= 1
            source.shuffle(deck)
        found.append(Fault(len(found), at, deck.pop(), source.random(), source.random()))
        at += source.expovariate(1 / every_s)
    return tuple(found)
