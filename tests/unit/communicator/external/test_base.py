"""The rules that all external engines follow, on an engine of one rank that a test controls."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tfcollective._base.errors import (
    CollectiveCancelledError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
    StateError,
)
from tfcollective._base.topology import SINGLE
from tfcollective._runtime.engines.base import ExternalCommunicator


class Engine(ExternalCommunicator):
    """A world of one; `data_moves` is called in every all-reduce after the agreement."""

    def __init__(self, data_moves=lambda: None):
        super().__init__(SINGLE, 60.0)
        self.data_moves = data_moves
        self.others_view = None

    def _reduce(self, array, op, deadline):
        self.data_moves()
        return array

    def _gather(self, data, deadline):
        return [data] if self.others_view is None else [data, self.others_view]

    def _exchange(self, parts, deadline):
        return list(parts)

    def _send_to_all(self, array, root, deadline):
        return array

    def subset(self, ranks):
        return self

    def abort(self, cause):
        pass


def raiser(error):
    def moves():
        raise error

    return moves


@pytest.mark.parametrize(
    ("error", "afterwards"),
    [
        (KeyboardInterrupt(), CollectiveCancelledError),
        (ValueError("x"), CollectiveCancelledError),
        (PeerLostError("gone"), PeerLostError),
        (CollectiveTimeoutError("late"), CollectiveTimeoutError),
    ],
)
def test_an_interrupted_engine_stays_broken(error, afterwards):
    engine = Engine(raiser(error))
    with pytest.raises(type(error)):
        engine.allreduce(np.ones(3))
    engine.data_moves = lambda: None
    assert engine.info().broken
    with pytest.raises(afterwards):
        engine.allreduce(np.ones(3))
    assert isinstance(engine.failure(), afterwards)


def test_ranks_that_disagree_can_go_on():
    engine = Engine()
    engine.others_view = b"something else"
    with pytest.raises(CollectiveMismatchError, match="rank 1: something else"):
        engine.barrier()
    engine.others_view = None
    engine.barrier()
    assert (engine.info().broken, engine.info().completed, engine.info().pending) == (False, 1, 0)


def test_a_queued_call_keeps_its_own_timeout():
    begun, end = threading.Event(), threading.Event()

    def moves():
        begun.set()
        assert end.wait(60)

    engine = Engine(moves)
    first = threading.Thread(target=engine.allreduce, args=(np.ones(3),))
    first.start()
    assert begun.wait(60)
    with pytest.raises(CollectiveTimeoutError, match=r"barrier 'b' timed out after 0.1 s behind"):
        engine.barrier(name="b", timeout=0.1)
    end.set()
    first.join(60)
    engine.barrier()
    assert engine.info().completed == 2


@pytest.mark.parametrize(("error", "seen"), [(PeerLostError("gone"), PeerLostError), (None, StateError)])
def test_a_queued_call_sees_the_firsts_outcome(error, seen):
    begun, end, results = threading.Event(), threading.Event(), []

    def moves():
        begun.set()
        assert end.wait(60)
        if error is not None:
            raise error
        engine.close()

    def call(work):
        try:
            work()
        except Exception as found:
            results.append(type(found))

    engine = Engine(moves)
    calls = [lambda: engine.allreduce(np.ones(3)), engine.barrier]
    threads = [threading.Thread(target=call, args=(work,)) for work in calls]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    end.set()
    for thread in threads:
        thread.join(60)
    assert results == ([PeerLostError, seen] if error else [seen])
