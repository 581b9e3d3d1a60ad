"""Trains models with jit_compile=True and without, and saves the weights of the former: job_xla.py RESULT.npz.

Runs on any number of ranks, which have the same global batches. With a second argument, rank 1 changes a weight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

tfk.init()
rank, size = tfk.rank(), tfk.size()
keras = tf.keras
BATCH, BATCHES, EPOCHS = 12, 6, 2
rng = np.random.default_rng(7)
X = rng.normal(size=(BATCH * BATCHES, 5)).astype(np.float32)
Y = (X @ rng.normal(size=(5, 1)) + 0.1).astype(np.float32)
IDS = rng.integers(0, 11, size=(BATCH * BATCHES, 3))
mine = np.arange(len(X)) % size == rank


def dense(kind: type = keras.Sequential) -> object:
    layers = [keras.layers.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    return kind(layers)


def embedding() -> object:
    layers = [keras.layers.Embedding(11, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((3,)), *layers])


def normalized() -> object:
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((5,)), *layers])


class OwnStep(keras.Sequential):
    """A training step with a tape."""

    def train_step(self, data: tuple) -> dict:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tfc.DistributedGradientTape(tape).gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def fit(make: Callable, optimizer: object, jit: bool, callbacks: tuple = (), **options: object) -> list:
    keras.utils.set_random_seed(3)
    model = make()
    model.compile(optimizer, "mse", jit_compile=jit, **options)
    history = model.fit(
        IDS[mine] if make is embedding else X[mine],
        Y[mine],
        batch_size=BATCH // size,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[tfk.BroadcastGlobalVariablesCallback(0), tfk.MetricAverageCallback(), *callbacks],
    )
    assert model.jit_compile == jit
    return [*(tf.convert_to_tensor(w).numpy() for w in model.weights), np.array(history.history["loss"], np.float32)]


class Changes(keras.callbacks.Callback):
    """One rank changes a weight after the second batch."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if rank == 1 and batch == 1:
            self.model.weights[0].assign_add(tf.ones(self.model.weights[0].shape))


def distributed(kind: str, **options: object) -> object:
    return tfk.DistributedOptimizer(getattr(keras.optimizers, kind)(0.01, **options))


PROGRAMS = {
    "sgd": lambda jit: fit(dense, distributed("SGD"), jit),
    "adam": lambda jit: fit(dense, distributed("Adam"), jit),
    "embedding": lambda jit: fit(embedding, distributed("Adam"), jit),
    "accumulated": lambda jit: fit(dense, distributed("Adam", gradient_accumulation_steps=3), jit),
    "clipped": lambda jit: fit(dense, distributed("SGD", global_clipnorm=0.5), jit),
    "several steps": lambda jit: fit(dense, distributed("Adam"), jit, steps_per_execution=3),
    "loss scale": lambda jit: fit(
        dense, keras.optimizers.LossScaleOptimizer(distributed("Adam"), dynamic_growth_steps=4), jit
    ),
    "normalized": lambda jit: fit(normalized, distributed("SGD"), jit),
    "own step": lambda jit: fit(lambda: dense(OwnStep), keras.optimizers.Adam(0.01), jit),
    "compressed": lambda jit: fit(
        dense, tfk.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=tfc.Compression.fp16), jit
    ),
}

if len(sys.argv) > 2:
    fit(dense, distributed("SGD"), True, callbacks=(Changes(),))
results = {}
for name, program in PROGRAMS.items():
    compiled, plain = program(True), program(False)
    for index, (got, wanted) in enumerate(zip(compiled, plain, strict=True)):
        tolerance = 1e-3 if name == "compressed" else 1e-5
        np.testing.assert_allclose(got, wanted, tolerance, tolerance / 2, err_msg=f"{name} {index}")
        results[f"{name} {index}"] = got
    print("ok", name, flush=True)
if rank == 0:
    np.savez(sys.argv[1], **results)
tfk.shutdown()
