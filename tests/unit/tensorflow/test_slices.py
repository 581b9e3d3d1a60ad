"""Equal rows of IndexedSlices are added in a fixed order."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.tensorflow as tfc
from tfcollective.tensorflow._functions import as_of_one_batch, merged

pytestmark = pytest.mark.tensorflow
ROWS, TABLE, WIDTH = 16384, 500, 64


def many() -> object:
    rng = np.random.default_rng(0)
    values, rows = rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.integers(0, TABLE, ROWS)
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([TABLE, WIDTH], tf.int64))


@pytest.mark.parametrize("traced", [False, True])
def test_each_row_once_and_the_same_gradient(traced: bool) -> None:
    slices = many()
    got = (tf.function(merged) if traced else merged)(slices)
    rows = slices.indices.numpy()
    expected = np.zeros([TABLE, WIDTH], np.float64)
    np.add.at(expected, rows, slices.values.numpy().astype(np.float64))
    np.testing.assert_array_equal(got.indices, np.unique(rows))
    np.testing.assert_allclose(got.values, expected[np.unique(rows)], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got.dense_shape, [TABLE, WIDTH])


@pytest.mark.parametrize(
    ("dtype", "index"),
    [
        (tf.float32, tf.int32),
        (tf.float64, tf.int64),
        (tf.float16, tf.int64),
        (tf.bfloat16, tf.int32),
        (tf.int32, tf.int64),
    ],
)
def test_types(dtype: object, index: object) -> None:
    values = tf.cast([[1, 2], [3, 4], [5, 6]], dtype)
    got = merged(tf.IndexedSlices(values, tf.constant([4, 1, 4], index)))
    assert (got.values.dtype, got.indices.dtype) == (dtype, index)
    np.testing.assert_array_equal(got.indices, [1, 4])
    np.testing.assert_array_equal(tf.cast(got.values, tf.float32), [[3, 4], [6, 8]])


@pytest.mark.parametrize("shape", [(0, 3), (2,), (2, 3, 4)])
def test_no_rows_and_rows_of_any_rank(shape: tuple) -> None:
    rows = tf.zeros([shape[0]], tf.int64)
    got = merged(tf.IndexedSlices(tf.ones(shape), rows))
    assert got.values.shape == (min(shape[0], 1), *shape[1:])
    assert got.indices.shape == (min(shape[0], 1),)
    assert tf.reduce_all(got.values == shape[0])


@pytest.mark.parametrize("size", [1, 2])
def test_scattered_updates_have_the_same_bits(size: int) -> None:
    table, slices = tf.Variable(tf.zeros([TABLE, WIDTH])), many()
    results = set()
    with fake_world(size):
        for _ in range(12):
            table.assign(tf.zeros([TABLE, WIDTH]))
            table.scatter_sub(tfc.allreduce(slices))
            results.add(table.numpy().tobytes())
    assert len(results) == 1


def test_compressed_rows_are_added_in_full_precision() -> None:
    table = tf.Variable(tf.zeros([2, 1]))
    rows = tf.zeros([1000], tf.int64)
    with fake_world():
        with tfc.DistributedGradientTape(tf.GradientTape(), compression=tfc.Compression.bf16, op=tfc.Sum) as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        got = tape.gradient(loss, table)
    assert float(got.values[0, 0]) == 2000.0  # bfloat16 has no 257


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([2, 0, 1, 2, 0, 1], [2, 0, 1]),  # of places: the same in both parts
        ([2, 0, 1, 2, 1, 0], [2, 0, 1, 2, 1, 0]),
        ([3, 3, 3, 3], [3, 3, 3, 3]),  # of tokens that happen to be equal
        ([0, 1, 0, 1, 0], [0, 1, 0, 1, 0]),
        ([], []),
    ],
)
def test_rows_of_each_part_are_added(rows: list, expected: list) -> None:
    values = np.arange(2.0 * len(rows), dtype=np.float32).reshape(-1, 2)
    got = as_of_one_batch(tf.IndexedSlices(values, tf.constant(rows, tf.int64), tf.constant([4, 2])), 2)
    assert got.indices.numpy().tolist() == expected
    parts = len(rows) // max(len(expected), 1)
    np.testing.assert_array_equal(got.values, values.reshape(parts, -1, 2).sum(0) if parts > 1 else values)
