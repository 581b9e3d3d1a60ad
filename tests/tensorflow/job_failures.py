"""One rank of two fails while the other waits in a training step. Usage: job_failures.py KIND.

Prints on the surviving rank how long it waited and which error it got.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

kind = sys.argv[1]
tfk.init()
rank = tfk.rank()
keras = tf.keras


class GoWrong(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if rank != 1 or batch != 2:
            return
        with open(os.environ["FAILED_AT"], "w") as file:
            file.write(repr(time.time()))
        if kind == "exception":
            raise ValueError("the data is rotten")
        if kind == "exit":
            sys.exit(3)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "uneven":
            self.model.stop_training = True


model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
try:
    model.fit(
        np.ones((40, 3), np.float32),
        np.ones((40, 1), np.float32),
        batch_size=2,
        verbose=0,
        callbacks=[tfk.BroadcastGlobalVariablesCallback(0), GoWrong()],
    )
except tf.errors.OpError as error:
    with open(os.environ["FAILED_AT"]) as file:
        waited = time.time() - float(file.read())
    print(f"reported after {waited:.2f} s: {type(error).__name__}: {error.message}", flush=True)
    raise
