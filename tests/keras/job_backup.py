"""Trains with a backup; job_backup.py DIR PASSES [RANK]: that rank kills itself in the middle of the second epoch.

The undisturbed run's weights go to DIR/expected.npz, those of the run that was interrupted to DIR/resumed.npz.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

tfk.init()
rank, size = tfk.rank(), tfk.size()
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
directory = Path(sys.argv[1])
passes = int(sys.argv[2])  # backward passes that make an update
victim = int(sys.argv[3]) if len(sys.argv) > 3 else None
BATCHES, EPOCHS, PER_CALL = 8, 3, 2
rng = np.random.default_rng(11)
X = rng.normal(size=(BATCHES * 4 * size, 5)).astype(np.float32)[rank::size]
Y = rng.normal(size=(BATCHES * 4 * size, 1)).astype(np.float32)[rank::size]


def new_model() -> object:
    keras.utils.set_random_seed(5 + rank)
    layers = [keras.layers.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.BatchNormalization()]
    if KERAS_3:  # its random generators are variables
        layers.append(keras.layers.Dropout(0.25, seed=40 + rank))
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = tfk.DistributedOptimizer(keras.optimizers.Adam(0.02), backward_passes_per_step=passes)
    model.compile(optimizer, "mse", steps_per_execution=PER_CALL)
    optimizer.register_local_var(model.layers[-1].bias)  # each rank's own
    return model


class Seen(keras.callbacks.Callback):
    """Which epochs and steps there were; kills this process at a given one."""

    def __init__(self, dies: bool = False) -> None:
        super().__init__()
        self.epochs, self.dies = [], dies

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if self.dies and self.epochs[-1] == 1 and batch >= 5:
            os.kill(os.getpid(), signal.SIGKILL)


def train(callbacks: list) -> object:
    model = new_model()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    broadcast = tfk.BroadcastGlobalVariablesCallback(0, local_variables=[model.layers[-1].bias])
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[broadcast, *callbacks])
    return model


def save(model: object, name: str) -> None:
    # The moving statistics of BatchNormalization are each rank's own by nature; rank 0's count.
    weights = [tf.convert_to_tensor(w).numpy() for w in [*model.trainable_weights, *model.optimizer.variables]]
    if rank == 0:
        weights += [tf.convert_to_tensor(w).numpy() for w in model.non_trainable_weights]
    everyone = tfk.allgather_object(weights)
    if rank == 0:
        np.savez(directory / name, **{f"{r}/{i}": w for r, ws in enumerate(everyone) for i, w in enumerate(ws)})


if victim is not None:
    save(train([]), "expected.npz")
backup = tfk.BackupAndRestore(directory / "backup", save_freq=2)
seen = Seen(dies=rank == victim)
model = train([seen, backup])
assert backup.resumed_from == (1, 4), backup.resumed_from
assert seen.epochs == [1, 2], seen.epochs
assert int(model.optimizer.iterations) == BATCHES * EPOCHS // (passes if KERAS_3 else 1)
save(model, "resumed.npz")

if rank == 0:
    assert not list((directory / "backup").iterdir())
tfk.barrier()

# Nothing is left: the next training starts from the beginning, with the epoch that is passed.
seen = Seen()
model.fit(X, Y, batch_size=4, initial_epoch=1, epochs=2, verbose=0, callbacks=[seen, backup])
assert backup.resumed_from is None
assert seen.epochs == [1]
print("ok", flush=True)
