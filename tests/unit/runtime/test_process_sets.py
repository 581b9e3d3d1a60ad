"""Process sets, and several ranks that register and remove them together, in one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

import tfcollective
from tfcollective import _runtime as runtime
from tfcollective._base.errors import CollectiveError, InvalidArgumentError, PeerLostError, TransportError
from tfcollective._runtime.communicator import CommunicatorOptions, Listener, NativeCommunicator, Sum
from tfcollective._runtime.members import Members
from tfcollective._runtime.objects import SealedExchange
from tfcollective._runtime.process_sets import ProcessSet, ProcessSets, checked_ranks, global_process_set

SIZE = 3
KEY = b"k" * 16


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1], 3])
def test_a_set_has_ranks_each_once(ranks: object) -> None:
    with pytest.raises(InvalidArgumentError, match="process set: expected"):
        ProcessSet(ranks)


def test_an_unregistered_set_knows_only_its_ranks() -> None:
    mine = ProcessSet([2, 0])
    assert mine.ranks == [0, 2]
    assert (mine.process_set_id, mine.size(), mine.rank(), mine.included(), mine.mpi_comm) == (None,) * 5


def test_what_can_be_registered() -> None:
    assert checked_ranks(ProcessSet([1, 0]), 3, [(0, 2)]) == (0, 1)
    for ranks, known, text in [
        ([0, 3], [], "rank 3 is not"),
        ([0, 2], [(0, 2)], "already"),
        ([0, 1, 2], [], "already"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            checked_ranks(ProcessSet(ranks), 3, known)


def test_members_translate_ranks() -> None:
    members = Members(1, (1, 4), 0)
    assert members.place_of(4, "root_rank") == 1
    with pytest.raises(InvalidArgumentError, match=r"root_rank: expected one of the ranks 1, 4, got 0"):
        members.place_of(0, "root_rank")


class Subset:
    """Connects the members, or refuses to."""

    def __init__(self, rank: Rank, members: Members) -> None:
        self._rank = rank
        self._members = members
        self._listener = Listener("127.0.0.1", "node") if members.included and members.size > 1 else None
        self.address = "" if self._listener is None else self._listener.address

    def connect(self, addresses: list[str]) -> NativeCommunicator | None:
        members = self._members
        if not members.included:
            return None
        if self._listener is None:
            return NativeCommunicator.alone()
        if self._rank.refuse_to_connect:
            raise TransportError("no route")
        return NativeCommunicator.connect(
            self._listener,
            rank=members.rank,
            addresses=addresses,
            key=KEY,
            generation=members.process_set_id,
            world_ranks=members.ranks,
            options=CommunicatorOptions(stall_warning=self._rank.stall_warning),
        )

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class Rank:
    """As an engine: one of the ranks of a world that lives in this process."""

    def __init__(self, rank: int, world: NativeCommunicator) -> None:
        self.rank = rank
        self.refuse_to_connect = False
        self.stall_warning = 10.0
        self.sets = ProcessSets(lambda: world, self, SealedExchange(KEY, "job"))
        self.world = world

    def subset(self, members: Members) -> Subset:
        return Subset(self, members)

    def dismiss(self, members: Members) -> None:
        pass

    def add(self, *ranks: int) -> ProcessSet:
        made = ProcessSet(ranks)
        self.sets.add(made, self.rank, SIZE)
        return made

    def total(self, made: ProcessSet) -> float:
        world = self.sets.communicator(self.sets.members(made))
        assert world is not None
        return float(world.allreduce(float(self.rank), op=Sum))


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list]]:
    """Runs a function of a rank on all ranks at once; gives the results, or the errors, in rank order."""
    monkeypatch.setattr(NativeCommunicator, "publish", lambda self, number: None)  # one table for all "processes"
    monkeypatch.setattr(NativeCommunicator, "withdraw", lambda self, number: None)
    ranks: list[Rank] = []

    def run(function: Callable[[Rank], object]) -> list:
        results: list = [None] * SIZE

        def one(rank: Rank) -> None:
            try:
                results[rank.rank] = function(rank)
            except Exception as error:
                results[rank.rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    listeners = [Listener("127.0.0.1", "node") for _ in range(SIZE)]
    addresses = [listener.address for listener in listeners]

    def connect(rank: int) -> None:
        world = NativeCommunicator.connect(listeners[rank], rank=rank, addresses=addresses, key=KEY, generation=1)
        ranks.append(Rank(rank, world))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ranks.sort(key=lambda rank: rank.rank)
    yield run
    run(lambda rank: rank.sets.close(5.0))
    run(lambda rank: rank.world.close())


def test_members_reduce_among_themselves(together: Callable[..., list]) -> None:
    def check(rank: Rank) -> object:
        outer, single = rank.add(0, 2), rank.add(1)
        total = rank.total(outer if outer.included() else single)
        assert outer.size() == 2
        if outer.included():
            assert outer.rank() == rank.rank // 2
        else:
            with pytest.raises(InvalidArgumentError, match="does not include"):
                outer.rank()
        return outer.process_set_id, single.process_set_id, total, rank.sets.listed()

    results = together(check)
    assert [result[2] for result in results] == [2.0, 1.0, 2.0]
    assert all(result[:2] == (1, 2) and result[3] == {1: [0, 2], 2: [1]} for result in results)


def test_errors_name_the_ranks_of_the_world(together: Callable[..., list]) -> None:
    def check(rank: Rank) -> tuple | None:
        made = rank.add(1, 2)
        if not made.included():
            return None
        world = rank.sets.communicator(rank.sets.members(made))
        if rank.rank == 2:
            world.close()
            return None
        with pytest.raises(PeerLostError) as caught:
            world.barrier()
        return caught.value.peer, str(caught.value)

    peer, text = together(check)[1]
    assert peer == 2
    assert text.startswith("in a process set, where rank 0 is the world's rank 1, 1 is the world's rank 2: ")


def test_slow_operation_warnings_name_world_ranks(together: Callable[..., list]) -> None:
    warned = threading.Event()
    texts: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            warned.set()

    def check(rank: Rank) -> float | None:
        rank.stall_warning = 0.1
        made = rank.add(1, 2)
        if rank.rank == 2:
            assert warned.wait(60)
        return rank.total(made) if made.included() else None

    log = logging.getLogger("tfcollective.native")
    heard = Heard(logging.WARNING)
    log.addHandler(heard)
    try:
        assert together(check) == [None, 3.0, 3.0]
    finally:
        log.removeHandler(heard)
    assert texts[0].startswith("in a process set, where rank 0 is the world's rank 1, 1 is the world's rank 2: ")
    assert "rank 1 has not" in texts[0]


def test_a_removed_sets_number_is_not_reused(together: Callable[..., list]) -> None:
    def check(rank: Rank) -> tuple:
        first = rank.add(0, 1)
        removed = rank.sets.remove(first, SIZE)
        again = rank.sets.remove(first, SIZE)
        with pytest.raises(InvalidArgumentError, match="not registered"):
            rank.sets.members(first)
        with pytest.raises(InvalidArgumentError, match="number 1"):
            rank.sets.members_of(1)
        second = rank.add(0, 1)
        return removed, again, second.process_set_id, rank.total(second) if second.included() else None

    assert together(check) == [(True, False, 2, 1.0), (True, False, 2, 1.0), (True, False, 2, None)]


def test_disagreeing_ranks_get_errors_and_continue(together: Callable[..., list]) -> None:
    def check(rank: Rank) -> float | None:
        with pytest.raises(InvalidArgumentError, match=r"rank 2: .*\[0, 2\]"):
            rank.add(*([0, 2] if rank.rank == 2 else [0, 1]))
        made = rank.add(0, 1)
        return rank.total(made) if made.included() else None

    assert together(check) == [1.0, 1.0, None]


def test_a_member_that_cannot_connect_is_reported(together: Callable[..., list]) -> None:
    def check(rank: Rank) -> str:
        rank.refuse_to_connect = True
        with pytest.raises(CollectiveError) as caught:
            rank.add(0, 1)
        assert rank.sets.listed() == {}
        return str(caught.value)

    results = together(check)
    assert results[:2] == ["no route", "no route"]
    assert "rank 0: no route; rank 1: no route" in results[2]


def test_in_a_world_of_one() -> None:
    mine, other = ProcessSet([0]), ProcessSet([0])
    tfcollective.init(process_sets=[mine])
    try:
        assert (mine.process_set_id, mine.size(), mine.rank(), mine.included()) == (1, 1, 0, True)
        assert (global_process_set.process_set_id, global_process_set.ranks) == (0, [0])
        assert runtime.process_set_ids_and_ranks() == {0: [0], 1: [0]}
        with pytest.raises(InvalidArgumentError, match="already"):
            runtime.add_process_set(other)
        assert runtime.members(mine) == Members(1, (0,), 0)
        assert float(runtime.get_communicator(mine).allreduce(2.0)) == 2.0
        assert runtime.remove_process_set(mine)
        assert not runtime.remove_process_set(global_process_set)
        with pytest.raises(InvalidArgumentError, match="expected a ProcessSet"):
            runtime.members([0])
    finally:
        tfcollective.shutdown()
    assert global_process_set.size() is None


@pytest.mark.parametrize("sets", ["static", [[0]], [ProcessSet([1])]])
def test_wrong_sets_leave_nothing_behind(sets: object) -> None:
    with pytest.raises(InvalidArgumentError):
        tfcollective.init(process_sets=sets)
    assert not tfcollective.is_initialized()
