"""Bytes between ranks that somebody on the way may change: nothing is used of what its sender does not prove."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from tfcollective._base import payload
from tfcollective._base.errors import InvalidArgumentError, ProtocolError
from tfcollective._runtime.members import GLOBAL_SET, Members
from tfcollective._runtime.objects import SealedExchange

KEY = b"k" * 32
EVERYONE = Members(GLOBAL_SET, (0, 1), 0)


class World:
    """Two ranks that are threads of this process, and somebody between them who may change what rank 0 gets."""

    def __init__(self, change=lambda name, sent: sent):
        self.size = 2
        self._change = change
        self._barrier = threading.Barrier(2)
        self._sent = {}

    def seen_by(self, rank):
        return SimpleNamespace(
            rank=rank,
            size=2,
            broadcast=lambda array, root, name: self._meet(rank, array, name)[root],
            allgather=lambda array, name: np.concatenate(self._meet(rank, array, name)),
        )

    def abort(self):
        self._barrier.abort()

    def _meet(self, rank, array, name):
        """What each rank has sent, as this rank gets it."""
        self._sent[rank] = array
        self._barrier.wait(60)
        got = [self._sent[0], self._sent[1] if rank == 1 else self._changed(self._sent[1], name)]
        self._barrier.wait(60)
        return got

    def _changed(self, array, name):
        changed = self._change(name, array.tobytes())
        return np.frombuffer(changed, np.uint8).reshape(-1, *array.shape[1:])


def on_both(world, act):
    """What the function gives, or the error that it raises, on both ranks."""
    results = [None, None]

    def run(rank):
        try:
            results[rank] = act(world.seen_by(rank), exchanges[rank])
        except (ProtocolError, threading.BrokenBarrierError) as error:
            world.abort()
            results[rank] = error

    exchanges = [SealedExchange(KEY, "job"), SealedExchange(KEY, "job")]
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def broadcast(world, exchange):
    return exchange.broadcast(world, EVERYONE, b"from %d" % world.rank, 1, "thing")


def allgather(world, exchange):
    return exchange.allgather(world, EVERYONE, b"from %d" % world.rank * (world.rank + 1), "thing")


def test_bytes_come_as_they_were_sent():
    assert on_both(World(), broadcast) == [b"from 1", b"from 1"]
    assert on_both(World(), allgather) == [[b"from 0", b"from 1from 1"]] * 2


@pytest.mark.parametrize("operation", [broadcast, allgather])
@pytest.mark.parametrize("place", [*range(0, payload.SEAL_BYTES, 7), payload.SEAL_BYTES - 1])
def test_a_changed_seal_is_refused_first(operation, place):
    names = []

    def change(name, sent):
        names.append(name)
        return sent[:place] + bytes([sent[place] ^ 1]) + sent[place + 1 :]

    refused = on_both(World(change), operation)[0]
    assert isinstance(refused, ProtocolError)
    assert refused.peer == 1
    assert set(names) == {"thing/seal"}  # nothing was allocated by a length that somebody has made up


@pytest.mark.parametrize("operation", [broadcast, allgather])
def test_changed_bytes_name_rank_and_operation(operation):
    def change(name, sent):
        return sent if name.endswith("/seal") else b"F" + sent[1:]

    refused = on_both(World(change), operation)[0]
    with pytest.raises(ProtocolError, match="thing: what came from rank 1 is not what it has sent"):
        raise refused


def test_what_was_sent_before_proves_nothing_again():
    recorded = {}

    def replay(name, sent):
        return recorded.setdefault(name, sent)

    def twice(world, exchange):
        first = exchange.broadcast(world, EVERYONE, b"first", 1, "thing")
        return first, exchange.broadcast(world, EVERYONE, b"again", 1, "thing")

    assert isinstance(on_both(World(replay), twice)[0], ProtocolError)
    assert on_both(World(), twice) == [(b"first", b"again")] * 2


WHERE = [3, 0, "thing", 0, 1]


@pytest.mark.parametrize("other", [[2, *WHERE[1:]], [3, 1, *WHERE[2:]], [3, 0, "other", 0, 1], [*WHERE[:4], 0]])
def test_a_seal_fits_one_operation_and_sender(other):
    sealed = payload.seal(b"data", KEY, WHERE)
    assert payload.open_seal(sealed, KEY, WHERE).fits(b"data")
    assert payload.open_seal(sealed, KEY, other) is None
    assert payload.open_seal(sealed, b"K" * 32, WHERE) is None
    assert payload.open_seal(sealed + b"x", KEY, WHERE) is None


def test_another_generation_begins_to_count_anew():
    def in_two_worlds(world, exchange):
        if world.rank == 0:  # it has done more in the world before, as a rank that was lost has not
            exchange._count(EVERYONE, "thing")
        exchange.enter(2)
        return exchange.broadcast(world, EVERYONE, b"data", 1, "thing")

    assert on_both(World(), in_two_worlds) == [b"data"] * 2


def test_lengths_have_a_limit(monkeypatch):
    sealed = payload.seal(b"data", KEY, WHERE)
    monkeypatch.setattr(payload, "MAX_OBJECT_BYTES", 3)
    assert payload.open_seal(sealed, KEY, WHERE) is None
    with pytest.raises(InvalidArgumentError, match="an object of 4 bytes; at most 3"):
        payload.seal(b"data", KEY, WHERE)
