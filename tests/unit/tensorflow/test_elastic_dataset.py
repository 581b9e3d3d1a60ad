"""A dataset that is built anew for each world, and counts what has been taken."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeCommunicator, fake_world

from tfcollective._base.errors import InvalidArgumentError
from tfcollective._runtime.communicator import Min, Op
from tfcollective.tensorflow.elastic import ObjectState, elastic_dataset

pytestmark = pytest.mark.tensorflow
built: list[tuple[int, int, int]] = []


def build(rank: int, size: int, done: int) -> Any:
    built.append((rank, size, done))
    return tf.data.Dataset.range(20).skip(done).shard(size, rank).batch(2).prefetch(4)


def test_a_world_begins_at_the_last_commit() -> None:
    built.clear()
    state = ObjectState(done=0)
    data = elastic_dataset(build, state, batch_size=2)
    with fake_world(3, rank=1):
        batches = iter(data)
        assert next(batches).numpy().tolist() == [1, 4]
        state.save()
        assert next(batches).numpy().tolist() == [7, 10]
        assert state.done == 12
    state.restore()
    assert state.done == 6
    with fake_world(2, rank=1):
        assert [batch.numpy().tolist() for batch in data] == [[7, 9], [11, 13], [15, 17], [19]]
    assert built == [(1, 3, 0), (1, 2, 6)]
    assert state.done >= 20


class Others(FakeCommunicator):
    """The other ranks have so many batches, and ask for each one if `asks`."""

    def __init__(self, batches: int, asks: bool) -> None:
        super().__init__(2)
        self.left, self.asks = batches, asks

    def allreduce(self, array: Any, op: Op, **_options: Any) -> Any:
        assert op == Min
        if self.asks and int(array) not in (0, 1):
            return array * 0 - 2
        mine = int(self.left > 0) if self.asks else self.left
        self.left -= self.asks
        return min(int(array), mine)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("others", "expected"), [(2, 2), (9, 5)])
def test_one_exhausted_rank_ends_the_epoch(
    asks: bool, others: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ObjectState(done=0)
    with fake_world(2):
        other = Others(others, asks)
        monkeypatch.setattr("tfcollective._runtime.get_communicator", lambda: other)
        batches = list(elastic_dataset(build, state, batch_size=2))
    assert len(batches) == expected
    assert state.done == expected * 4


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="state: expected one with a number done=0"):
        elastic_dataset(build, ObjectState(epoch=0))
    with pytest.raises(InvalidArgumentError, match="batch_size: expected 1 or more, got 0"):
        elastic_dataset(build, ObjectState(done=0), 0)
    with fake_world(1), pytest.raises(InvalidArgumentError, match=r"expected a tf.data.Dataset from it, got list"):
        next(iter(elastic_dataset(lambda rank, size, done: [], ObjectState(done=0))))
