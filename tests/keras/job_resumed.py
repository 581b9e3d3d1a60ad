"""An unmodified script with a backup; job_resumed.py DIR NAME [RANK]: that rank kills itself in its second epoch.

The weights go to DIR/NAME.npz; of Keras 2 the backup is ours.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

keras = tf.keras
KERAS_3 = hasattr(keras, "distribution")
directory, name, *victim = sys.argv[1:]
rng = np.random.default_rng(11)
x = rng.normal(size=(50, 5)).astype(np.float32)
rows = tf.data.Dataset.from_tensor_slices((x, np.tanh(x.sum(1, keepdims=True))))


def load(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.sqrt(tf.abs(x)) * tf.sign(x), y


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        assert logs["loss"] > 0
        if (self.epoch, batch) == (1, 5) and victim == [os.environ.get("RANK")]:
            os.kill(os.getpid(), signal.SIGKILL)
        if victim:
            print(f"epoch {self.epoch} batch {batch}", flush=True)


def backup() -> keras.callbacks.Callback:
    if KERAS_3:
        return keras.callbacks.BackupAndRestore(os.path.join(directory, "backup"), save_freq=4)
    import tfcollective.keras as tfk

    tfk.init()
    return tfk.BackupAndRestore(os.path.join(directory, "backup"), save_freq=4)


keras.utils.set_random_seed(5)
model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
data = rows.shuffle(20, seed=7).map(load).batch(8)
model.fit(data, epochs=3, verbose=0, callbacks=[backup(), Dies()])
if os.environ.get("RANK", "0") == "0":
    np.savez(Path(directory) / f"{name}.npz", *model.get_weights())
