"""Plays the steps of all ranks over a model of the network. Pure.

No two ranks share anything but messages, and a rank's messages leave in the order of its steps; so the order in which
ranks are played does not matter, and no clock has to be common. (Messages that come to one host at the same moment do
not slow each other down: ranks of a ring or of recursive doubling hear from one other rank at a time.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tfcollective._base.errors import InternalError
from tfcollective_bench.simulate.network import Network
from tfcollective_bench.simulate.steps import Step, StepKind

__all__ = ["duration", "looks_the_same"]

#: Sender, receiver, number of the message.
_Message: TypeAlias = tuple[int, int, int]
_SAMPLED = 4


def duration(size: int, steps_of: Callable[[int], Sequence[Step]], network: Network) -> float:
    """Seconds until the last of `size` ranks has taken its last step, all having begun at 0.

    Args:
        steps_of: the steps of a rank.

    Raises:
        InternalError: a rank waits for a message that no rank sends.
    """
    sampled = sorted({0, 1 % size, size // 2, size - 1})[:_SAMPLED]
    samples = {rank: steps_of(rank) for rank in sampled}
    if looks_the_same(samples, size):
        return _play({0: samples[0]}, network, size)
    return _play({rank: samples[rank] if rank in samples else steps_of(rank) for rank in range(size)}, network, 0)


def looks_the_same(samples: Mapping[int, Sequence[Step]], size: int) -> bool:
    """True if these ranks do the same, relative to their positions: then all end at the same moment, and one rank that
    sends to itself ends with them. A few bytes of difference, where elements do not divide, do not count."""
    seen = {rank: [_relative(step, rank, size) for step in steps] for rank, steps in samples.items()}
    first, *others = seen.values()
    return all(other == first for other in others)


def _relative(step: Step, rank: int, size: int) -> tuple[int, int, int, int, bool]:
    offset = -1 if step.kind == StepKind.WAIT else (step.peer - rank) % size
    return (step.kind, offset, step.message, step.request, step.to_scratch)


class _Link:
    """The outgoing link of one host: a queue and a token bucket."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free_at = 0.0
        self._tokens = network.burst
        self._counted_at = 0.0

    def send(self, now: float, nbytes: int) -> float:
        """Returns the time at which the last byte has left."""
        network = self._network
        begin = max(now, self._free_at)
        if network.beta:
            self._tokens = min(network.burst, self._tokens + (begin - self._counted_at) / network.beta)
        paid = min(self._tokens, float(nbytes))
        self._tokens -= paid
        self._free_at = begin + max((nbytes - paid) * network.beta, nbytes * network.copy)
        # What passes while it is paid for byte by byte leaves no tokens behind.
        self._counted_at = begin + (nbytes - paid) * network.beta
        return self._free_at


class _Rank:
    """A rank: its clock and its progress. `mates` > 0: it stands for so many equal ranks in a circle."""

    def __init__(self, rank: int, steps: Sequence[Step], network: Network, mates: int) -> None:
        self._rank, self._steps, self._network, self._mates = rank, steps, network, mates
        self._link = _Link(network)
        self._requests: dict[int, Step] = {}
        self._left: dict[int, float] = {}
        self._next = 0
        self.clock = 0.0

    def play(self, arrivals: dict[_Message, float]) -> _Message | None:
        """Takes steps until the end (None) or until a message is missing (which one)."""
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if step.kind == StepKind.SEND:
                self._left[step.request] = self._link.send(self.clock, step.bytes)
                arrivals[self._key(step)] = self._left[step.request] + self._network.alpha
            elif step.kind == StepKind.RECEIVE:
                self._requests[step.request] = step
            elif step.request in self._left:
                self.clock = max(self.clock, self._left.pop(step.request))
            else:
                receive = self._requests[step.request]
                key = self._key(receive)
                if key not in arrivals:
                    return key
                self.clock = max(self.clock, arrivals.pop(key))
                self.clock += receive.bytes * self._network.gamma if receive.to_scratch else 0.0
                del self._requests[step.request]
            self._next += 1
        return None

    def _key(self, step: Step) -> _Message:
        if self._mates:
            offset = step.peer - self._rank if step.kind == StepKind.SEND else self._rank - step.peer
            return (offset % self._mates, 0, step.message)
        ends = (self._rank, step.peer) if step.kind == StepKind.SEND else (step.peer, self._rank)
        return (*ends, step.message)


def _play(programs: Mapping[int, Sequence[Step]], network: Network, mates: int) -> float:
    arrivals: dict[_Message, float] = {}
    ranks = [_Rank(rank, steps, network, mates) for rank, steps in programs.items()]
    waiting = [(rank, rank.play(arrivals)) for rank in ranks]
    while stuck := [(rank, key) for rank, key in waiting if key is not None]:
        going = [(rank, key) for rank, key in stuck if key in arrivals]
        if not going:
            raise InternalError(f"{len(stuck)} ranks wait for messages that no rank sends, the first for {stuck[0][1]}")
        blocked = [(rank, key) for rank, key in stuck if key not in arrivals]
        waiting = [*blocked, *((rank, rank.play(arrivals)) for rank, _ in going)]
    return max(rank.clock for rank in ranks)
