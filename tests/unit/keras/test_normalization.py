"""Synchronised batch normalization with one rank is Keras's own; what several ranks do is in the jobs."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfc
from tfcollective._base.errors import UnsupportedError

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")


@pytest.mark.parametrize("shape", [(6, 3), (4, 5, 3), (2, 4, 4, 3)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_one_rank_is_keras(shape: tuple, axis: int) -> None:
    inputs = tf.constant(np.random.default_rng(1).normal(100.0, 2.0, shape), tf.float32)
    plain = {"axis": axis} if KERAS_3 else {"axis": axis, "fused": False}  # fused, it takes n - 1 for the variance
    with fake_world(size=1):
        layers = [tfc.SyncBatchNormalization(axis=axis), keras.layers.BatchNormalization(**plain)]
        ours, keras_own = (layer(inputs, training=True) for layer in layers)
    np.testing.assert_allclose(ours, keras_own, rtol=1e-3, atol=2e-3)
    for mine, own in zip(layers[0].weights, layers[1].weights):
        np.testing.assert_allclose(tf.convert_to_tensor(mine), tf.convert_to_tensor(own), rtol=1e-4)


def test_it_survives_saving_and_mixed_precision() -> None:
    made = keras.layers.deserialize(
        keras.layers.serialize(tfc.SyncBatchNormalization(momentum=0.5, dtype="mixed_float16"))
    )
    assert type(made) is tfc.SyncBatchNormalization
    with fake_world(size=1):
        out = made(tf.constant([[100.0], [102.0]], tf.float16), training=True)
        assert made(tf.constant([[51.0]], tf.float16), training=False).dtype == tf.float16
    assert out.dtype == tf.float16
    np.testing.assert_allclose(out, [[-1.0], [1.0]], atol=1e-2)
    np.testing.assert_allclose(tf.convert_to_tensor(made.moving_mean), [50.5])


@pytest.mark.parametrize("option", ["fused", "synchronized"])
def test_other_ways_are_refused(option: str) -> None:
    with pytest.raises(UnsupportedError, match=option):
        tfc.SyncBatchNormalization(**{option: True})


@pytest.mark.parametrize("synchronized", [False, True])
def test_keras_layers_are_synchronized_on_request(synchronized: bool) -> None:
    inputs = tf.constant([[1.0], [3.0]])
    with fake_world() as ops:
        ops.rows_of_others = tf.constant([[[2.0], [6.0], [1.0]]])  # count, mean, variance
        made = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.0)
        made(inputs, training=True)
    assert ops.count("allgather") == synchronized
    assert tf.convert_to_tensor(made.moving_mean).numpy().tolist() == [4.0 if synchronized else 2.0]
    assert tf.convert_to_tensor(made.moving_variance).numpy().tolist() == [5.0 if synchronized else 1.0]


def test_keras_own_layer_alone_is_as_ever() -> None:
    with fake_world(size=1) as ops:
        keras.layers.BatchNormalization(synchronized=True)(tf.constant([[1.0], [3.0]]), training=True)
    assert ops.ran == []
