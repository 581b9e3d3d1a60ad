"""One rank of a loop that evaluates in an elastic job: job_elastic_evaluate.py DIRECTORY METRIC TASK EPOCH BATCH.

METRIC is one that Keras merges ("mae") or one of its own that it does not ("last"). In the evaluation after EPOCH the
process of worker TASK is killed before its BATCH-th batch. Each rank leaves in DIRECTORY the batches that it has
evaluated, as JSON lines, and at the end the results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfc
from tfcollective.keras.elastic import KerasState, run

DIRECTORY, METRIC, FAULT = Path(sys.argv[1]), sys.argv[2], [int(one) for one in sys.argv[3:]]
ME = int(os.environ.get("TFCOLLECTIVE_TASK", "worker:0").rpartition(":")[2])
log = (DIRECTORY / f"batches-{ME}.jsonl").open("a", buffering=1)
epochs: list[int] = []  # as they were trained here
notes, here = False, [0, 0]  # the epoch, and the number of this rank's next batch


def evaluate_batch(batch: Any) -> Any:
    if notes:
        if FAULT == [ME, *here]:
            os.kill(os.getpid(), signal.SIGKILL)
        here[1] += 1
        log.write(json.dumps([here[0], int(batch[0, 0]) // 4]) + "\n")
    return np.int64(0)


class Last(tf.keras.metrics.Metric):
    """Depends on the order of all batches."""

    def __init__(self) -> None:
        super().__init__(name="last")
        self.last = self.add_weight(name="last", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del y_pred, sample_weight
        self.last.assign(self.last / 2 + tf.reduce_sum(y_true))

    def result(self) -> Any:
        return self.last


class Noting(tf.keras.Sequential):
    def test_step(self, data: Any) -> Any:
        x, y = data
        with tf.control_dependencies([tf.numpy_function(evaluate_batch, [x], tf.int64)]):
            return super().test_step((tf.identity(x), y))


tfc.init()
ROWS = np.arange(42, dtype=np.float32)[:, np.newaxis]
model = Noting([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", loss="mse", metrics=[Last() if METRIC == "last" else METRIC])


@run
def train(state: Any) -> None:
    global notes
    while state.epoch < 3:
        if state.trained == state.epoch:
            epochs.append(state.epoch)
            model.layers[-1].bias.assign_add([1.0])
            state.trained += 1
            state.commit()
        notes, here[:] = True, [state.epoch, 0]
        found = tfc.evaluate(model, ROWS, 2 * ROWS, batch_size=4, verbose=0, return_dict=True)
        notes = False
        alone = model.evaluate(ROWS, 2 * ROWS, batch_size=4, verbose=0, return_dict=True)
        state.results = [*state.results, [found, alone]]
        state.epoch += 1
        state.commit()


state = KerasState(model, epoch=0, trained=0, results=[])
train(state)
(DIRECTORY / f"end-{ME}.json").write_text(json.dumps({"epochs": epochs, "results": state.results}))
