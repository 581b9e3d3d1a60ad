"""Trains small models on the same global batches, whatever the number of ranks, and saves the weights.

Usage: job_training.py RESULT.npz. Each rank takes its share of every global batch; the mean of the ranks' mean losses
is then the mean over the global batch. Every rank starts from other weights and takes rank 0's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

tfk.init()
rank, size = tfk.rank(), tfk.size()
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
GLOBAL_BATCH, BATCHES, EPOCHS = 12, 6, 2
rng = np.random.default_rng(7)
X = rng.normal(size=(GLOBAL_BATCH * BATCHES, 5)).astype(np.float32)
Y = (X @ rng.normal(size=(5, 1)) + 0.1).astype(np.float32)
IDS = rng.integers(0, 11, size=(GLOBAL_BATCH * BATCHES, 3))
mine = np.arange(len(X)) % size == rank  # GLOBAL_BATCH is a multiple of every size that is tested


def dense_model() -> object:
    keras.utils.set_random_seed(100 + rank)  # differs from rank to rank on purpose
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def embedding_model() -> object:
    keras.utils.set_random_seed(200 + rank)
    return keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Embedding(11, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )


def fit(model: object, inputs: np.ndarray, optimizer: object, callbacks: tuple = (), **options: object) -> list:
    model.compile(tfk.DistributedOptimizer(optimizer), "mse", **options)
    history = model.fit(
        inputs[mine],
        Y[mine],
        batch_size=GLOBAL_BATCH // size,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[tfk.BroadcastGlobalVariablesCallback(0), tfk.MetricAverageCallback(), *callbacks],
    )
    return [*weights_of(model), np.array(history.history["loss"], np.float32)]


def weights_of(model: object) -> list:
    return [tf.convert_to_tensor(w).numpy() for w in model.weights]


def custom_loop(model: object, inputs: np.ndarray, optimizer: object, with_tape: bool, eager: bool = False) -> list:
    """Horovod's idiom: broadcast after the first update."""
    if not with_tape:
        optimizer = tfk.DistributedOptimizer(optimizer)

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        tape = tf.GradientTape()
        with tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        if with_tape:
            tape = tfc.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = step if eager else tf.function(step)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, Y))
    local = tfc.shard(dataset).batch(GLOBAL_BATCH // size)
    tfc.broadcast_variables(model.variables, root_rank=0)
    for number, (x, y) in enumerate(local.repeat(EPOCHS)):
        run(x, y)
        if number == 0:
            tfc.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    return weights_of(model)


def late_broadcast() -> list:
    """Replicas that differ until after the first step, with the guard on: no false alarm."""
    model = dense_model()
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.01))
    for number in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X[:4]) - Y[:4]) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        if number == 0:
            tfc.broadcast_variables(model.variables, root_rank=0)
    return weights_of(model)


def experiment(folder: Path) -> list:
    """Only rank 0 writes; the checkpoints and the model are there when all are done."""

    def make_model() -> object:
        model = dense_model()
        model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
        return model

    log = keras.callbacks.CSVLogger(str(folder / f"log.{rank}.csv"))
    params = {"batch_size": GLOBAL_BATCH // size, "epochs": EPOCHS, "shuffle": False, "callbacks": [log]}
    whole = tfk.KerasExperiment(
        make_model, str(folder), params, lambda: X[mine], lambda: Y[mine], lambda: (X[:4], Y[:4])
    )
    history = whole.train()
    tfc.barrier()
    checkpoints = [f"checkpoint-{epoch:04d}.weights.h5" for epoch in range(1, EPOCHS + 1)]
    assert sorted(path.name for path in folder.iterdir()) == [*checkpoints, "log.0.csv", "model.keras"]
    trained = keras.models.load_model(folder / "model.keras", compile=False)
    last = make_model()
    last.load_weights(folder / checkpoints[-1])
    for one, other in zip(weights_of(trained), weights_of(last), strict=True):
        np.testing.assert_array_equal(one, other)
    return [*weights_of(trained), *(np.array(history[name], np.float32) for name in ("loss", "val_loss"))]


def check_equal_everywhere(name: str, arrays: list) -> None:
    everyone = tfc.allgather_object([array.tobytes() for array in arrays])
    assert all(theirs == everyone[0] for theirs in everyone), f"{name}: replicas differ"


optimizers = keras.optimizers
results = {
    "sgd": fit(dense_model(), X, optimizers.SGD(0.05, momentum=0.9)),
    "adam": fit(dense_model(), X, optimizers.Adam(0.02)),
    "clipped": fit(dense_model(), X, optimizers.SGD(0.05, global_clipnorm=0.3), steps_per_execution=2),
    "decay_ema": fit(
        dense_model(), X, optimizers.AdamW(0.02, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3)
    ),
    "embedding": fit(embedding_model(), IDS, optimizers.Adam(0.02)),
    "eager": fit(dense_model(), X, optimizers.Adam(0.02), run_eagerly=True),
    "loop_tape": custom_loop(dense_model(), X, optimizers.SGD(0.05, momentum=0.9), with_tape=True),
    "loop_tape_eager": custom_loop(dense_model(), X, optimizers.SGD(0.05), with_tape=True, eager=True),
    "loop_optimizer": custom_loop(dense_model(), X, optimizers.Adam(0.02), with_tape=False),
    "loop_embedding": custom_loop(embedding_model(), IDS, optimizers.SGD(0.1), with_tape=True),
}
if KERAS_3:
    results["accumulated"] = fit(dense_model(), X, optimizers.SGD(0.05, gradient_accumulation_steps=3))
else:
    results["legacy"] = fit(dense_model(), X, optimizers.legacy.Adam(0.02))
results["experiment"] = experiment(Path(sys.argv[1]).with_suffix(""))
late_broadcast()
for name, arrays in results.items():
    check_equal_everywhere(name, arrays)
if rank == 0:
    np.savez(sys.argv[1], **{f"{n}/{i}": a for n, arrays in results.items() for i, a in enumerate(arrays)})
print("ok", flush=True)
