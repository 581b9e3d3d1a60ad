"""Several backward passes a step, and layers that stay each rank's own, over imagined ranks."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")


def kinds() -> list:
    return [keras.optimizers.SGD] if KERAS_3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
def test_passes_are_added_up_and_reduced_once(kind: type, traced: bool, average: bool) -> None:
    dense, table, unused = tf.Variable([0.0]), tf.Variable(tf.zeros([3, 1])), tf.Variable([1.0])
    variables = [dense, table, unused]

    def step(optimizer: object, x: object) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense * x) + tf.reduce_sum(tf.gather(table, [1, 1])) * x
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    run = tf.function(step) if traced else step
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(
            kind(1.0), backward_passes_per_step=4, average_aggregated_gradients=average, op=tfk.Sum
        )
        for number in range(8):
            run(optimizer, tf.constant(float(number)))
            scale = 2.0 * (0.25 if average else 1.0)  # 2 ranks
            done = scale * sum(range((number + 1) // 4 * 4))
            np.testing.assert_allclose(dense, [-done], rtol=1e-6)
            np.testing.assert_allclose(table, [[0.0], [-2 * done], [0.0]], rtol=1e-6)
    assert ops.count("start keras_optimizer") == 2
    assert int(optimizer.iterations) == (2 if KERAS_3 else 8)
    np.testing.assert_array_equal(unused, [1.0])


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
def test_passes_in_fit(kind: type) -> None:
    with fake_world() as ops:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(tfk.DistributedOptimizer(kind(0.01, momentum=0.5), backward_passes_per_step=2), "mse")
        model.fit(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32), batch_size=2, verbose=0)
    assert ops.count("start keras_optimizer") == 2


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 does not accumulate")
def test_passes_are_counted_by_one_only() -> None:
    with pytest.raises(InvalidArgumentError, match="gradient_accumulation_steps"):
        tfk.DistributedOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=2), backward_passes_per_step=2)
    built = keras.optimizers.SGD()
    built.build([tf.Variable([1.0])])
    with pytest.raises(InvalidArgumentError, match="before it is built"):
        tfk.DistributedOptimizer(built, backward_passes_per_step=2)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 accumulates inside the scaler")
def test_passes_and_keras_2_loss_scalers_conflict() -> None:
    scaler = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(UnsupportedError, match="LossScaleOptimizer"):
        tfk.DistributedOptimizer(scaler, backward_passes_per_step=2)


@pytest.mark.parametrize("scale", [False, True])
def test_local_layers_may_be_built_later(scale: bool) -> None:
    local, shared = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    with fake_world(size=4) as ops:
        optimizer = tfk.DistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=local, scale_local_gradients=scale, op=tfk.Sum
        )
        for layer in (local, shared):
            layer.build((None, 1))
            layer.set_weights([np.zeros((1, 1))])
        optimizer.apply_gradients([(tf.ones([1, 1]), local.kernel), (tf.ones([1, 1]), shared.kernel)])
    np.testing.assert_array_equal(local.get_weights()[0], [[-0.25 if scale else -1.0]])
    np.testing.assert_array_equal(shared.get_weights()[0], [[-4.0]])
    assert len(next(iter(ops.signatures.values())).splitlines()) == 1


def test_local_layers_are_layers() -> None:
    with pytest.raises(InvalidArgumentError, match="local_layers"):
        tfk.DistributedOptimizer(keras.optimizers.SGD(), local_layers=[1])
