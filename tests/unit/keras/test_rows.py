"""Datasets whose rows are divided before they are computed: same rows, a part of the work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.rows import batches_of, keep_seeds

pytestmark = pytest.mark.tensorflow
Data = Any
AUTO = tf.data.AUTOTUNE
Shuffle = type(tf.data.Dataset.range(1).shuffle(1))
CONSTANT = tf.Variable(3, dtype=tf.int64)
TABLE = {"keys": tf.range(40, dtype=tf.int64), "values": tf.range(40, dtype=tf.int64) * 3}


def numbers(count: int = 23) -> Data:
    return tf.data.Dataset.range(count)


def slices() -> Data:
    return tf.data.Dataset.from_tensor_slices(
        {"x": np.arange(46.0).reshape(23, 2), "text": [str(n) for n in range(23)]}
    )


def squared(row: Any) -> Any:
    return {"x": tf.cast(tf.stack([row, row * row]), tf.float32), "y": row}


def looked_up() -> Data:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(**TABLE), -1)
    return numbers().map(table.lookup).shuffle(9).batch(4)


DATASETS: dict[str, Callable[[], Data]] = {
    "map": lambda: numbers().map(squared).batch(5),
    "parallel map": lambda: numbers().map(squared, num_parallel_calls=AUTO).batch(5).prefetch(2),
    "two maps": lambda: numbers().map(squared).map(lambda row: (row["x"], row["y"])).batch(4),
    "shuffle above": lambda: numbers().shuffle(10, seed=3).map(squared).batch(5),
    "shuffle below": lambda: numbers().map(squared).shuffle(10).batch(5).prefetch(AUTO),
    "shuffle once": lambda: numbers().map(squared).shuffle(10, reshuffle_each_iteration=False).batch(5),
    "table": looked_up,
    "drop_remainder": lambda: numbers().map(squared).batch(5, drop_remainder=True),
    "take and skip rows": lambda: numbers().map(squared).skip(2).take(17).batch(4),
    "take and skip batches": lambda: numbers().map(squared).batch(3).skip(1).take(5),
    "repeat rows": lambda: numbers(7).map(squared).repeat(3).batch(4),
    "repeat batches": lambda: numbers(7).map(squared).batch(3).repeat(2),
    "function": lambda: numbers().map(tf.function(lambda row: row + CONSTANT)).batch(5),
    "zip": lambda: tf.data.Dataset.zip((numbers().map(squared), numbers().map(lambda row: -row))).batch(5),
    "zip and map": lambda: tf.data.Dataset.zip((numbers(), numbers())).map(lambda a, b: (a + b, a)).batch(5),
    "one-tuple": lambda: tf.data.Dataset.from_tensor_slices((np.arange(9),)).map(lambda a: (a * 2,)).batch(4),
    "arrays": lambda: slices().shuffle(30).batch(5).prefetch(2),
    "arrays in part": lambda: slices().shuffle(30, seed=2).skip(3).batch(4, drop_remainder=True).take(3),
    "arrays again and again": lambda: slices().shuffle(30).batch(4).repeat(2),
    "one array": lambda: tf.data.Dataset.from_tensor_slices(np.arange(9)).batch(2),
    "map of arrays": lambda: slices().shuffle(9).map(lambda row: row["x"] * 2).shuffle(5).batch(5),
    "zip of arrays": lambda: tf.data.Dataset.zip((slices(), slices().shuffle(9))).batch(5),
    "single rows": lambda: numbers(4).map(squared).batch(1),
    "unknown": lambda: numbers().filter(lambda row: row % 3 != 0).map(squared).batch(4),
}


FOUND = ["shuffle above", "shuffle below", "shuffle once", "arrays", "zip of arrays"]  # seeds in graphs
CASES = [*((name, True) for name in DATASETS), *((name, False) for name in FOUND)]


def listed(dataset: Data) -> list[Any]:
    return [tf.nest.map_structure(lambda one: one.numpy(), batch) for batch in dataset]


def made(name: str, *, keeps: bool = False) -> Data:
    """The dataset, as a script makes it that has begun with a seed and read one epoch.

    Args:
        name: of the dataset.
        keeps: shuffles keep their seeds; otherwise they are TensorFlow's own.
    """
    keep_seeds()
    tf.random.set_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        if not keeps:
            patch.setattr(Shuffle, "__init__", inspect.unwrap(Shuffle.__init__))
        data = DATASETS[name]()
    listed(data)
    assert batches_of(data) is not None
    return data


def assert_equal(found: Any, expected: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(("name", "keeps"), CASES)
def test_slices_are_those_of_whole_batches(name: str, *, keeps: bool) -> None:
    epochs = [listed(data) for data in [made(name)] for _ in range(2)]
    for rank in (0, 2):
        data = made(name, keeps=keeps)
        mine = Division(rank, 3).parts_of(data)
        assert int(mine.cardinality()) == int(data.cardinality())
        for batches in epochs:
            for (total, part, _), whole in zip(mine, batches, strict=True):
                assert_equal(part, Division(rank, 3).part_of(tf.nest.map_structure(tf.constant, whole)).batch)
                assert total == len(tf.nest.flatten(whole)[0])


@pytest.mark.parametrize(("name", "keeps"), CASES)
def test_whole_batches_are_every_nth(name: str, *, keeps: bool) -> None:
    epochs = [listed(data) for data in [made(name)] for _ in range(2)]
    for rank in (0, 2):
        data = made(name, keeps=keeps)
        mine = Division(rank, 3).whole_batches_of(data)
        assert int(mine.cardinality()) == int(data.shard(3, rank).cardinality())
        for batches in epochs:
            found = listed(mine)
            assert len(found) == len(batches[rank::3])
            assert_equal(found, batches[rank::3])


def with_policy(data: Data, policy: str) -> Data:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return data.with_options(options)


class Counts:
    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, row: Any) -> Any:
        self.rows.append(int(row))
        return row


def counted(counts: Counts) -> Data:
    return numbers(22).map(lambda row: tf.numpy_function(counts, [row], tf.int64, stateful=False)).batch(6)


def test_a_rank_computes_its_rows_alone() -> None:
    counts = Counts()
    (*_, last) = Division(1, 3).parts_of(with_policy(counted(counts), "DATA"))
    assert sorted(counts.rows) == [2, 3, 8, 9, 14, 15, 20]
    np.testing.assert_array_equal(last.batch, [20])


def test_a_rank_computes_its_batches_alone() -> None:
    counts = Counts()
    assert len(list(Division(1, 3).whole_batches_of(with_policy(counted(counts), "DATA")))) == 1
    assert sorted(counts.rows) == [*range(6, 12)]


def test_python_runs_as_often_as_in_one_process() -> None:
    counts = Counts()
    list(Division(1, 3).parts_of(counted(counts)))
    assert sorted(counts.rows) == [*range(22)]


def test_data_of_its_own_are_left_alone() -> None:
    data = with_policy(numbers(8).map(squared).batch(4), "OFF")
    own = list(Division(1, 2).parts_of(data))
    assert [int(part.total) for part in own] == [8, 8]
    assert_equal([part.batch for part in own], listed(data))
    assert_equal(listed(Division(1, 2).whole_batches_of(data)), listed(data))


def counting() -> Data:
    variable = tf.Variable(0, dtype=tf.int64)
    return numbers().map(lambda row: row + variable.assign_add(1)).batch(4)


def reading() -> Data:
    others = iter(numbers())
    return numbers().map(lambda row: row + next(others)).batch(4)


NOT_DIVIDED: dict[str, Callable[[], Data]] = {
    "no map": lambda: numbers().batch(4),
    "map of batches": lambda: numbers().batch(4).map(lambda batch: batch - tf.reduce_mean(batch)),
    "random": lambda: numbers().map(lambda row: row + tf.random.uniform([], 0, 9, tf.int64)).batch(4),
    "random branch": lambda: (
        numbers().map(lambda row: row if row < 9 else row + tf.random.uniform([], 0, 9, tf.int64)).batch(4)
    ),
    "variable": counting,
    "iterator": reading,
    "shuffle in a function": lambda: (
        numbers().map(lambda row: numbers().shuffle(9).reduce(row, lambda first, second: second)).batch(4)
    ),
    "cache": lambda: numbers().map(squared).cache().shuffle(9).batch(4),
    "shuffled batches": lambda: numbers().map(squared).batch(4).shuffle(3),
    "padded": lambda: numbers().map(lambda row: tf.range(row)).padded_batch(4),
    "sources of unequal shapes": lambda: (
        numbers().map(tf.range).filter(lambda row: True).map(lambda row: tf.reduce_sum(row)).batch(4)
    ),
    "random boxes": lambda: (
        numbers().map(lambda row: tf.image.sample_distorted_bounding_box((99, 99, 3), tf.zeros((1, 1, 4)))[0]).batch(4)
    ),
    "windows of a series": lambda: tf.keras.utils.timeseries_dataset_from_array(
        np.zeros((2000, 2), np.float32), np.zeros(2000), sequence_length=4, batch_size=5, shuffle=True
    ),
    "ragged": lambda: numbers().map(lambda row: tf.ragged.range([row, row])).batch(4),
}


@pytest.mark.parametrize("name", NOT_DIVIDED)
def test_some_are_divided_after_they_are_computed(name: str) -> None:
    assert batches_of(NOT_DIVIDED[name]()) is None


def test_stateless_random_rows_are_divided() -> None:
    data = numbers().map(lambda row: tf.random.stateless_uniform([2], [row, 1])).batch(4)
    assert batches_of(data) is not None


@pytest.mark.parametrize("count", [20, 23])
def test_arrays_are_gathered_by_slices(count: int) -> None:
    data = gathered(count)
    for rank in (0, 2):
        mine = Division(rank, 3).parts_of(data)
        assert int(mine.cardinality()) == int(data.cardinality())
        for part, whole in zip(mine, listed(data), strict=True):
            expected = Division(rank, 3).part_of(tf.nest.map_structure(tf.constant, whole))
            assert_equal(part[:2], expected[:2])
        assert_equal(listed(Division(rank, 3).whole_batches_of(data)), listed(data)[rank::3])


def gathered(count: int) -> Data:
    """The dataset that Keras makes of arrays."""
    x, y = np.arange(2 * count).reshape(count, 2), np.arange(count)
    if hasattr(tf.keras, "distribution"):
        from keras.src.trainers.data_adapters.array_data_adapter import (  # no public way to it
            ArrayDataAdapter,
        )

        return ArrayDataAdapter(x, y, batch_size=5).get_tf_dataset()
    adapters = sys.modules[tf.keras.Model.__module__].data_adapter  # no public way to it
    return adapters.TensorLikeDataAdapter(x, y, batch_size=5).get_dataset()
