"""Process sets: subsets of the ranks with collectives of their own. The words are Horovod's.

A process set is a communicator more: its members connect to each other as the world's ranks did. The world carries the
talk that this needs, so that every rank knows every set and a failure reaches all.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfcollective._base.errors import CollectiveError, InvalidArgumentError, TfCollectiveError
from tfcollective._runtime.communicator import Communicator
from tfcollective._runtime.members import GLOBAL_SET, Members

if TYPE_CHECKING:
    from tfcollective._runtime.engine import Engine
    from tfcollective._runtime.objects import SealedExchange


class ProcessSet:
    """A set of the world's ranks. Collectives take it once it is registered, by ``init`` or ``add_process_set``.

    Args:
        ranks: ranks of the world, each once; order does not matter.

    Attributes:
        ranks: in ascending order; of the global set None until ``init``.
        process_set_id: its number, equal on all ranks; None while it is not registered.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        try:
            given = [int(rank) for rank in ranks]
        except TypeError as error:
            raise InvalidArgumentError(f"process set: expected a list of ranks, got {ranks!r}") from error
        if not given or len(set(given)) != len(given) or min(given) < 0:
            raise InvalidArgumentError(f"process set: expected ranks, each once, got {given}")
        self.ranks: list[int] | None = sorted(given)
        self.process_set_id: int | None = None
        self._ended = ""  # why it is registered no longer
        self._rank: int | None = None

    @property
    def mpi_comm(self) -> None:
        """Always None: there is no MPI."""
        return

    def size(self) -> int | None:
        """The number of its ranks; None while it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def included(self) -> bool | None:
        """True if this process is a member; None while it is not registered."""
        return None if self.process_set_id is None else self._rank is not None

    def rank(self) -> int | None:
        """The rank of this process in the set; None while the set is not registered.

        Raises:
            InvalidArgumentError: this process is not a member.
        """
        if self.process_set_id is not None and self._rank is None:
            raise InvalidArgumentError(f"{self} does not include this process")
        return self._rank

    def _register(self, number: int, ranks: Sequence[int], world_rank: int) -> None:
        self.process_set_id = number
        self._ended = ""
        self.ranks = list(ranks)
        self._rank = self.ranks.index(world_rank) if world_rank in self.ranks else None

    def _forget(self) -> None:
        self.process_set_id = self._rank = None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


def _make_global() -> ProcessSet:
    made = ProcessSet([0])
    made.ranks = None
    return made


#: All ranks; the default everywhere.
global_process_set = _make_global()


@dataclass
class Registered:
    process_set: ProcessSet
    members: Members
    communicator: Communicator | None


class ProcessSets:
    """The process sets of one world, the global one excepted.

    Args:
        world: gives the world's communicator.
        engine: forms the sets.
        sealed: what carries the ranks' words about them.
    """

    def __init__(self, world: Callable[[], Communicator], engine: Engine, sealed: SealedExchange) -> None:
        self._world = world
        self._engine = engine
        self._sealed = sealed
        self._lock = threading.RLock()
        self._sets: dict[int, Registered] = {}
        self._next = GLOBAL_SET + 1

    def add(self, process_set: ProcessSet, rank: int, size: int) -> None:
        """Registers `process_set`; all ranks call this with the same ranks, in the same order.

        Raises:
            InvalidArgumentError: it is registered already, its ranks do not exist, or the ranks disagree.
            CollectiveError: its members could not connect; raised on every rank of the world.
        """
        with self._lock:
            ranks = checked_ranks(process_set, size, [entry.members.ranks for entry in self._sets.values()])
            self._register(process_set, self._next, ranks, rank, size)
            self._next += 1

    def _register(self, process_set: ProcessSet, number: int, ranks: tuple[int, ...], rank: int, size: int) -> None:
        members = Members(number, ranks, ranks.index(rank) if rank in ranks else -1)
        communicator = self._form(members) if size > 1 else None
        if communicator is not None:
            communicator.publish(number)
        self._sets[number] = Registered(process_set, members, communicator)
        process_set._register(number, ranks, rank)

    def remove(self, process_set: ProcessSet, size: int) -> bool:
        """Ends a set; all ranks call this in the same order. False if it is none of these."""
        with self._lock:
            number = process_set.process_set_id
            entry = self._sets.get(number) if number is not None else None
            if entry is None or entry.process_set is not process_set:
                return False
            if size > 1:
                self._agree("remove", entry.members)
            self._end(self._sets.pop(entry.members.process_set_id), 10.0)
            if size > 1:
                self._engine.dismiss(entry.members)
            return True

    def members(self, process_set: ProcessSet) -> Members:
        """The registered set; InvalidArgumentError if it is none."""
        if not isinstance(process_set, ProcessSet):
            raise InvalidArgumentError(f"process_set: expected a ProcessSet, got {process_set!r}")
        number = process_set.process_set_id
        entry = self._sets.get(number) if number is not None else None
        if entry is None and process_set._ended:
            raise InvalidArgumentError(f"process_set: {process_set} has ended: {process_set._ended}")
        if entry is None:
            raise InvalidArgumentError(
                f"process_set: {process_set} is not registered: give it to init(process_sets=...) or add_process_set()"
            )
        return entry.members

    def members_of(self, number: int) -> Members:
        """The set with this number; InvalidArgumentError if there is none."""
        entry = self._sets.get(number)
        if entry is None:
            raise InvalidArgumentError(f"process_set: there is none with the number {number} (any more)")
        return entry.members

    def communicator(self, members: Members) -> Communicator | None:
        """The members' communicator; None in a world of one, and where this process is none of them."""
        return self._sets[members.process_set_id].communicator

    def communicators(self) -> list[Communicator]:
        """Returns the communicators that this process has."""
        return [entry.communicator for entry in list(self._sets.values()) if entry.communicator is not None]

    def listed(self) -> dict[int, list[int]]:
        """Returns every set's number and ranks."""
        return {number: list(entry.members.ranks) for number, entry in sorted(self._sets.items())}

    def registered(self) -> dict[int, ProcessSet]:
        """Returns the sets by their numbers."""
        return {number: entry.process_set for number, entry in sorted(self._sets.items())}

    def form_again(self, sets: Mapping[int, tuple[ProcessSet, tuple[int, ...]]], rank: int, size: int) -> None:
        """Registers sets in the next world of a job: under the numbers that functions know which were traced in the
        last one, with the ranks that their members have now. All ranks call this, new ones with none: what rank 0 has
        is what there is.

        Raises what :meth:`add` raises.
        """
        text = json.dumps([self._next, [(number, ranks) for number, (_, ranks) in sorted(sets.items())]]).encode()
        # A list of all ranks for each set is sent only where a rank has another one, as newcomers have.
        if size > 1 and len({view["digest"] for view in self._exchange({"digest": _digest(text)})}) > 1:
            text = self._sealed.broadcast(self._world(), _everyone(self._world()), text, 0, "process sets")
        following, listed = json.loads(text)
        with self._lock:
            for number, ranks in listed:
                process_set, _ = sets.get(number) or (ProcessSet(ranks), ())
                self._register(process_set, number, tuple(ranks), rank, size)
            self._next = following

    def close(self, timeout: float) -> None:
        """Ends all sets, without any talk to other ranks."""
        with self._lock:
            while self._sets:
                _, entry = self._sets.popitem()
                self._end(entry, timeout)

    def _end(self, entry: Registered, timeout: float) -> None:
        entry.process_set._forget()
        if entry.communicator is None:
            return
        try:
            entry.communicator.withdraw(entry.members.process_set_id)
        finally:
            entry.communicator.close(timeout)

    def _form(self, members: Members) -> Communicator | None:
        """Connects the members; all ranks of the world take part, so that all know how it went."""
        subset = self._engine.subset(members)
        try:
            addresses = self._agree("add", members, subset.address)
            communicator, failure = None, None
            try:
                communicator = subset.connect([addresses[rank] for rank in members.ranks])
            except TfCollectiveError as error:
                failure = error
        finally:
            subset.close()
        self._check_outcome(communicator, failure)
        return communicator

    def _agree(self, action: str, members: Members, address: str = "") -> list[str]:
        """Returns every rank's address, in rank order. The ranks compare what they were asked to do by a digest, whose
        length does not grow with the sizes of the sets.

        Raises:
            InvalidArgumentError: they were asked to do different things; raised on every rank.
        """
        asked = f"{action} number {members.process_set_id} with the ranks {list(members.ranks)}"
        views = self._exchange({"digest": _digest(asked.encode()), "address": address})
        if len({view["digest"] for view in views}) > 1:
            everyones = self._exchange({"asked": asked})
            text = "; ".join(f"rank {rank}: {view['asked']}" for rank, view in enumerate(everyones))
            raise InvalidArgumentError(
                f"process sets: all ranks must add and remove the same ones, in one order: {text}"
            )
        return [str(view["address"]) for view in views]

    def _exchange(self, view: Mapping[str, object]) -> list[dict[str, Any]]:
        """Returns every rank's view, in rank order."""
        world = self._world()
        everyones = self._sealed.allgather(world, _everyone(world), json.dumps(dict(view)).encode(), "process sets")
        return [json.loads(text) for text in everyones]

    def _check_outcome(self, communicator: Communicator | None, failure: TfCollectiveError | None) -> None:
        outcomes = self._exchange({"failure": None if failure is None else str(failure)})
        failed = {rank: outcome["failure"] for rank, outcome in enumerate(outcomes) if outcome["failure"] is not None}
        if not failed:
            return
        if communicator is not None:
            communicator.close(0.0)
        text = "; ".join(f"rank {rank}: {reason}" for rank, reason in failed.items())
        raise failure or CollectiveError(f"a process set's members could not connect: {text}")


def checked_ranks(process_set: ProcessSet, size: int, known: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks of a set to register in a world of `size`, beside sets with the ranks `known`.

    Raises:
        InvalidArgumentError: what is wrong with it.
    """
    if process_set.process_set_id is not None or process_set.ranks is None:
        raise InvalidArgumentError(f"process set: {process_set} is registered already")
    ranks = tuple(process_set.ranks)
    if ranks[-1] >= size:
        raise InvalidArgumentError(f"process set: rank {ranks[-1]} is not in a world of {size}")
    if ranks in set(known) or len(ranks) == size > 1:
        raise InvalidArgumentError(f"process set: there is one with the ranks {_listed(ranks)} already")
    return ranks


def _everyone(world: Communicator) -> Members:
    return Members(GLOBAL_SET, tuple(range(world.size)), world.rank)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
