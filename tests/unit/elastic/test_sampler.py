"""In one epoch the ranks together take each element once, whatever comes and goes."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective.elastic import ElasticSampler
from tfcollective.elastic._sampler import Division, order_of


class World:
    """What a sampler asks of the runtime."""

    rank, size = 0, 1


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "rank", lambda: World.rank)
        patch.setattr(runtime, "size", lambda: World.size)
        yield


def in_world(sampler: ElasticSampler, size: int, steps: int | None) -> tuple[list[list[list[int]]], ElasticSampler]:
    """By step the batches of all ranks, for so many steps or to the end of the epoch; and what they commit then."""
    taken, after = [], sampler
    for rank in range(size):
        World.rank, World.size = rank, size
        after = copy.deepcopy(sampler)
        taken.append([batch.tolist() for batch in itertools.islice(after, steps)])
    return [list(step) for step in zip(*taken, strict=True)], after


def epoch_of(sampler: ElasticSampler, worlds: list[tuple[int, int]], last: int) -> Counter[int]:
    """What all ranks take in an epoch: in each world of `worlds`, (size, steps), and in one of `last` ranks at the end.
    In each world one more step is begun, that nothing comes of."""
    counts: Counter[int] = Counter()
    for size, steps in worlds:
        before = sampler
        batches, sampler = in_world(sampler, size, steps)
        in_world(sampler, size, 1)  # lost
        counts.update(itertools.chain(*itertools.chain(*batches)))
        if sampler.epoch > before.epoch:
            return counts
    batches, sampler = in_world(sampler, last, None)
    assert (sampler.epoch, sampler.done) == (1, 0)
    counts.update(itertools.chain(*itertools.chain(*batches)))
    return counts


def any_epoch(seed: int) -> tuple[int, int, bool, list[tuple[int, int]], int]:
    """Elements, batch, shuffle, the worlds, and the size of the last one."""
    draw = random.Random(seed).randint
    worlds = [(draw(1, 5), draw(0, 4)) for _ in range(draw(0, 5))]
    return draw(5, 200), draw(1, 9), bool(draw(0, 1)), worlds, draw(1, 5)


@pytest.mark.parametrize("seed", range(200))
def test_an_epoch_omits_few_indices_without_repetition(seed: int) -> None:
    total, batch, shuffle, worlds, last = any_epoch(seed)
    counts = epoch_of(ElasticSampler(total, batch, shuffle=shuffle), worlds, last)
    assert set(counts.values()) == {1}
    assert set(counts) <= set(range(total))
    assert len(counts) > total - max([last, *(size for size, _ in worlds)])


@pytest.mark.parametrize("seed", range(200))
def test_a_padded_epoch_repeats_few_indices(seed: int) -> None:
    total, batch, shuffle, worlds, last = any_epoch(seed)
    counts = epoch_of(ElasticSampler(total, batch, shuffle=shuffle, remainder="pad"), worlds, last)
    assert set(counts) == set(range(total))
    assert sum(counts.values()) - total < max([last, *(size for size, _ in worlds)])


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("left", [0, 1, 2, 3, 4, 5, 13, 14, 15, 35, 36])
def test_all_ranks_take_equally_much_in_each_step(left: int, batch: int, size: int, pad: bool) -> None:
    divisions = [Division(40, 40 - left, batch, rank, size, pad) for rank in range(size)]
    (count,) = {len(division.places()) for division in divisions}
    steps = divisions[0].steps
    assert -(-count // batch) == steps
    positions = [divisions[0].after(step) for step in range(steps + 1)]
    assert positions == sorted(set(positions))
    assert positions[-1] == 40


@pytest.mark.parametrize("seed", range(200))
def test_shares_always_form_the_global_batch(seed: int) -> None:
    total, batch, _, worlds, last = any_epoch(seed)
    whole = batch + 5  # worlds have 5 ranks at most
    done, order = 0, []
    for size, steps in [*worlds, (last, total)]:
        divisions = [Division(total, done, 1, rank, size, global_batch=whole) for rank in range(size)]
        (count,) = {one.steps for one in divisions}
        parts = [[one.places()[step * one.share :][: one.share].tolist() for one in divisions] for step in range(count)]
        for step, shares in enumerate(parts[:steps]):
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) in (0, 1)
            assert min(sizes) > 0
            weights = [one.weight(step) for one in divisions]
            assert weights == pytest.approx([size * len(share) / sum(sizes) for share in shares])
            assert sum(sizes) == whole or step == count - 1
            order += itertools.chain(*shares)
        done = divisions[0].after(min(steps, count))
        if done == total:
            break
    assert order == list(range(len(order)))
    assert len(order) > total - 5


def test_without_changes_ranks_take_consecutive_runs() -> None:
    batches, _ = in_world(ElasticSampler(14, 3, shuffle=False), 2, None)
    assert batches == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]], [[12], [13]]]


def test_what_is_left_is_divided_anew() -> None:
    sampler = ElasticSampler(14, 3, shuffle=False)
    _, sampler = in_world(sampler, 2, 1)
    assert sampler.done == 6
    batches, _ = in_world(sampler, 1, None)
    assert batches == [[[6, 7, 8]], [[9, 10, 11]], [[12, 13]]]


def test_each_epoch_has_an_order_all_share() -> None:
    orders = [order_of(50, True, 7, epoch).tolist() for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [order_of(50, True, 7, epoch).tolist() for epoch in range(3)]
    assert order_of(50, True, 8, 0).tolist() != orders[0]
    assert order_of(3, False, 8, 0).tolist() == [0, 1, 2]


def test_the_next_epoch_begins_where_one_ends() -> None:
    World.rank, World.size = 0, 1
    sampler = ElasticSampler(range(10), 4)
    assert len(sampler) == 3
    first = np.concatenate(list(sampler)).tolist()
    second = np.concatenate(list(sampler)).tolist()
    assert first != second
    assert sorted(first) == sorted(second) == list(range(10))
    assert sampler.epoch == 2


def test_a_global_batch_is_shared_and_weighted() -> None:
    sampler = ElasticSampler(17, shuffle=False, global_batch=7)
    batches, _ = in_world(sampler, 3, None)
    assert batches == [[[0, 1, 2], [3, 4], [5, 6]], [[7, 8, 9], [10, 11], [12, 13]], [[14], [15], [16]]]
    World.rank, World.size = 0, 3
    weights = [float(sampler.weight) for _ in sampler]
    assert weights == pytest.approx([9 / 7, 9 / 7, 1.0])
    assert sampler.weight.dtype == np.float32
    World.size = 1
    assert {float(sampler.weight) for _ in sampler} == {1.0}


def test_a_global_batch_below_size_is_refused() -> None:
    World.rank, World.size = 0, 3
    with pytest.raises(InvalidArgumentError, match="global_batch: 2 elements are not enough for 3 ranks"):
        next(iter(ElasticSampler(20, global_batch=2)))


def test_it_is_a_small_value_of_a_state() -> None:
    World.rank, World.size = 1, 2
    sampler = ElasticSampler(range(10**9), 4, shuffle=False)
    sampler.epoch, sampler.done = 3, 10**9 - 8
    data = cloudpickle.dumps(sampler)
    assert len(data) < 500
    found: Any = cloudpickle.loads(data)  # made three lines above
    assert (found.epoch, found.done, len(found)) == (3, 10**9 - 8, 1)


def test_fewer_elements_than_ranks_are_an_error() -> None:
    World.rank, World.size = 0, 3
    with pytest.raises(InvalidArgumentError, match="its 2 elements are not enough for 3 ranks"):
        next(iter(ElasticSampler(2)))
    assert len(ElasticSampler(2, remainder="pad")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 0}, "data: expected one element or more, got 0"),
        ({"data": []}, "data: expected one element or more, got 0"),
        ({"data": 5, "batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        ({"data": 5, "seed": -1}, "seed: expected 0 or more, got -1"),
        ({"data": 5, "global_batch": 0}, "global_batch: expected a number above 0, got 0"),
        ({"data": 5, "global_batch": 4, "batch_size": 2}, "batch_size: global_batch says how many"),
        ({"data": 5, "remainder": "keep"}, "remainder: expected one of drop, pad, got 'keep'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ElasticSampler(**arguments)
