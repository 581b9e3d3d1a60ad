"""Adasum over imagined ranks, and the tree over vectors that are all here."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow._adasum import combine
from tfcollective.tensorflow._gradients import warn_of_adasum

pytestmark = pytest.mark.tensorflow


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


def test_the_tree_joins_neighbours_first() -> None:
    a, b, c, d = vectors = np.random.default_rng(0).normal(size=(4, 9))
    levels = []
    got = combine(tf.constant(vectors), lambda partial, level: (levels.append(level), partial)[1])
    np.testing.assert_allclose(got, pair(pair(a, b), pair(c, d)), rtol=1e-12)
    assert levels == [0, 1]


def test_partial_vectors_need_the_summed_products() -> None:
    vectors = np.random.default_rng(1).normal(size=(2, 6))
    left, right = vectors[:, :2], vectors[:, 2:]
    seen: list = []
    combine(tf.constant(right), lambda partial, level: (seen.append(partial), partial)[1])
    got = combine(tf.constant(left), lambda partial, level: partial + seen[0])
    np.testing.assert_allclose(got, pair(*vectors)[:2], rtol=1e-12)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0]),  # orthogonal: the sum
        ([[1.0, 3.0], [1.0, 3.0]], [1.0, 3.0]),  # equal: the average
        ([[0.0, 0.0], [1.0, 2.0]], [1.0, 2.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
    ],
)
def test_the_corners(vectors: list, expected: list) -> None:
    np.testing.assert_array_equal(combine(tf.constant(vectors), lambda partial, level: partial), expected)


def test_what_it_is_not_for() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    with fake_world(size=2):
        with pytest.raises(InvalidArgumentError, match="int32"):
            tfc.allreduce(tf.constant(1), op=tfc.Adasum)
        with pytest.raises(UnsupportedError, match="IndexedSlices"):
            tfc.allreduce(slices, op=tfc.Adasum)
        with pytest.raises(UnsupportedError, match=r"^op=Adasum: .*use DistributedGradientTape\(op=Adasum\)"):
            tfk.DistributedOptimizer(tf.keras.optimizers.SGD(), op=tfc.Adasum)
        table = tf.Variable(tf.ones([3, 2]))
        with tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Adasum) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]))
        with pytest.raises(UnsupportedError, match="sparse_as_dense"):
            tape.gradient(loss, table)
    with fake_world(size=1):
        assert float(tfc.allreduce(3.0, op=tfc.Adasum)) == 3.0


def test_compression_that_is_not_used_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_adasum.cache_clear()
    for _ in range(2):  # a tape is made in every step
        tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Adasum, compression=tfc.Compression.fp16)
        tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Adasum)
    assert [record.message for record in caplog.records if "compression is not used" in record.message] == [
        "op=Adasum: compression is not used, gradients are combined and sent in float32 or wider"
    ]


def test_an_elastic_job_is_refused() -> None:
    with fake_world(size=2, elastic=True), pytest.raises(UnsupportedError, match="an elastic job need not keep"):
        tfc.allreduce(tf.ones(3), op=tfc.Adasum)
