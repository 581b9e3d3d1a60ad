"""Traced steps whose variables are not where the guard counts; see test_placement.py. Says which checks ran."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

tf.config.set_soft_device_placement(False)  # what cannot be on a device is an error, and not moved
keras = tf.keras
X, Y = np.ones((10, 3), np.float32), np.ones((10, 1), np.float32)


def model() -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    assert all(tf.convert_to_tensor(weight).device.endswith("CPU:1") for weight in made.weights)
    return made


def fit() -> None:
    made = model()
    made.compile(tfk.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    made.fit(X, Y, batch_size=2, verbose=0)


def tape() -> None:
    made, optimizer = model(), keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tfc.DistributedGradientTape(tf.GradientTape()) as recording:
            loss = tf.reduce_mean((made(X) - Y) ** 2)
        gradients = recording.gradient(loss, made.trainable_variables)
        optimizer.apply_gradients(zip(gradients, made.trainable_variables))

    for _ in range(5):
        step()


def spread() -> None:
    """Variables on both devices."""
    with tf.device("CPU:0"):
        here = tf.Variable([1.0, 2.0])
    there = tf.Variable([1.0, 2.0])
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
    step = tf.function(lambda: optimizer.apply_gradients([(tf.ones([2]), here), (tf.ones([2]), there)]))
    for _ in range(5):
        step()


for steps in (fit, tape, spread):
    with fake_world() as ops:
        steps()
    print(steps.__name__, ops.count("compare"), flush=True)
