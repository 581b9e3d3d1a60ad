"""The gradient noise scale of a problem whose noise is known: a gradient is a constant plus Gaussian noise. On 2 ranks.

The loss of a sample x is the product of x and the weights, so its gradient is x.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

tfk.init()
rank, size = tfk.rank(), tfk.size()
keras = tf.keras
DIMENSIONS, MEAN, DEVIATION, BATCH, STEPS = 50, 0.2, 1.0, 8, 400
# The trace of the covariance over the squared norm of the mean.
KNOWN = DIMENSIONS * DEVIATION**2 / (DIMENSIONS * MEAN**2)
SAMPLES = [
    np.random.default_rng(7 + one).normal(MEAN, DEVIATION, (STEPS * BATCH, DIMENSIONS)).astype(np.float32)
    for one in range(size)
]


def logged(op: object, *, trained_before: bool = False) -> float:
    model = keras.Sequential([keras.layers.Input((DIMENSIONS,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.0), op=op)
    model.compile(optimizer, lambda truth, predicted: predicted)
    data = {"x": SAMPLES[rank], "y": np.zeros((len(SAMPLES[rank]), 1), np.float32)}
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    broadcast = tfk.BroadcastGlobalVariablesCallback(0)
    if trained_before:
        assert "noise_scale" not in model.fit(**data, **options, steps_per_epoch=3, callbacks=[broadcast]).history
    callbacks = [broadcast, tfk.GradientNoiseScale(BATCH)]
    (value,) = model.fit(**data, **options, callbacks=callbacks).history["noise_scale"]
    return value


def by_hand() -> float:
    """The same estimates with numpy, from the gradients of all ranks."""
    of_ranks = np.stack([one.reshape(STEPS, BATCH, DIMENSIONS).mean(1, dtype=np.float64) for one in SAMPLES])
    small = (of_ranks**2).sum(-1).mean(0)
    big = (of_ranks.mean(0) ** 2).sum(-1)
    gradient = (size * BATCH * big - BATCH * small) / (size * BATCH - BATCH)
    trace = (small - big) / (1 / BATCH - 1 / (size * BATCH))
    return float(trace.mean() / gradient.mean())


expected = by_hand()
assert abs(expected / KNOWN - 1) < 0.1, (expected, KNOWN)
values = [logged(tfk.Average), logged(tfk.Sum, trained_before=True)]
np.testing.assert_allclose(values, expected, 1e-4)
assert tfk.allgather_object(values) == [values] * size
tfk.shutdown()
