"""One rank of an elastic fit: job_elastic_fit.py DIRECTORY KIND EPOCHS [FAULT ...].

KIND of data: arrays, dataset, sequence or function. A FAULT is PHASE:TASK:EPOCH:BATCH: there the process of worker TASK
is killed; PHASE is begin or end (of a batch), validation (BATCH counts those of this rank) or epoch (its end; BATCH is
0). Each rank leaves in DIRECTORY the rows that it has trained on, and those that it has evaluated, as JSON lines, and
at the end what it sees.

How long anything takes depends on the machine: a replacement joins when a file "changed" is there. With
WHOLE=EPOCH:BATCH in the environment the others make it there, and go on when the coordinator wants the world to change;
BATCH may be "validation".
With GLOBAL_BATCH the ranks share batches of so many rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfc
from tfcollective import _runtime as runtime

DIRECTORY, KIND, EPOCHS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
FAULTS = [one.split(":") for one in sys.argv[4:]]
ROWS, BATCH, VALIDATED = 230, 10, 97
ME = int(os.environ.get("TFCOLLECTIVE_TASK", "worker:0").rpartition(":")[2])
NEWCOMER, WHOLE = "TFCOLLECTIVE_NEWCOMER" in os.environ, os.environ.get("WHOLE", "")
CHANGED, WAITS = DIRECTORY / "changed", DIRECTORY / "waits"  # a replacement may come, and is there
GLOBAL_BATCH = int(os.environ["GLOBAL_BATCH"]) if "GLOBAL_BATCH" in os.environ else None
traces: list[bool] = []
calls: list[tuple[Any, ...]] = []
rows: list[int] = []
log = (DIRECTORY / f"rows-{ME}.jsonl").open("a", buffering=1)
validation = (DIRECTORY / f"validation-{ME}.jsonl").open("a", buffering=1)
evaluated = 0  # batches in this attempt


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def await_replacement(epoch: int, batch: int | str) -> None:
    """Rank 0 learns that the world is to change, and the others wait for it in their step."""
    if WHOLE == f"{epoch}:{batch}" and tfc.rank() == 0 and not CHANGED.exists():
        CHANGED.touch()
        wait_until(lambda: runtime.current().pending > runtime.generation(), "no replacement has come")
        WAITS.touch()


def fails_here(phase: str, epoch: int, batch: int) -> None:
    if [phase, str(ME), str(epoch), str(batch)] in FAULTS:
        os.kill(os.getpid(), signal.SIGKILL)


def evaluate_batch(batch: Any) -> Any:
    """A batch is evaluated."""
    global evaluated
    epoch = faults.epoch
    await_replacement(epoch, "validation")
    if WHOLE == f"{epoch}:validation":
        wait_until(WAITS.exists, "rank 0 has seen no replacement")
    fails_here("validation", epoch, evaluated)
    evaluated += 1
    validation.write(json.dumps([epoch, batch[:, 1].astype(int).tolist()]) + "\n")
    return np.int64(0)


class Noting(tf.keras.Sequential):
    """Notes when its step is traced, and the rows that it gets."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        if not notes_validation:
            return super().test_step(data)
        with tf.control_dependencies([tf.numpy_function(evaluate_batch, [x], tf.int64)]):
            return super().test_step((tf.identity(x), y))

    def train_step(self, data: Any) -> Any:
        traces.append(runtime.current().newcomer)
        x, y = data
        noted = tf.numpy_function(
            lambda some: np.int64(rows.extend(some[:, 1].astype(int).tolist()) or 0), [x], tf.int64
        )
        with tf.control_dependencies([noted]):
            return super().train_step((tf.identity(x), y))


class Faults(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        calls.append(("train",))

    def on_train_end(self, logs: Any = None) -> None:
        calls.append(("train end",))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        calls.append(("epoch", epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        fails_here("begin", self.epoch, batch)
        await_replacement(self.epoch, batch)
        rows.clear()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        log.write(json.dumps([self.epoch, batch, tfc.size(), rows]) + "\n")
        calls.append(("batch", self.epoch, batch, len(traces)))
        fails_here("end", self.epoch, batch)

    def on_test_begin(self, logs: Any = None) -> None:
        global evaluated
        evaluated = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        fails_here("epoch", epoch, 0)
        calls.append(("epoch end", epoch))


class Batches(tf.keras.utils.Sequence):
    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, place: int) -> Any:
        return x[place * BATCH : (place + 1) * BATCH], y[place * BATCH : (place + 1) * BATCH]


def data_of(kind: str, x: Any, y: Any) -> dict[str, Any]:
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": None if GLOBAL_BATCH else BATCH}
    if kind == "sequence":
        return {"x": Batches()}
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    if GLOBAL_BATCH:
        return {"x": whole}
    if kind == "dataset":
        return {"x": whole.batch(BATCH, drop_remainder=True)}
    return {"x": lambda epoch: whole.shuffle(ROWS, seed=epoch, reshuffle_each_iteration=False).batch(BATCH)}


tfc.init()
generator = np.random.default_rng(0)
x = np.stack([generator.normal(size=ROWS), np.arange(ROWS), generator.normal(size=ROWS)], 1).astype(np.float32)
y = 2.0 * x[:, :1] - x[:, 2:]
scale = np.array([1.0, 0.0, 1.0], np.float32)  # the number of the row is no feature
model = Noting(
    [
        tf.keras.layers.Input((3,)),
        tf.keras.layers.Rescaling(scale.tolist()),
        tf.keras.layers.Dense(1, kernel_initializer="ones"),
    ]
)
model.compile(tfc.DistributedOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.5)), loss="mse", metrics=["mae"])
if NEWCOMER:
    wait_until(CHANGED.exists, "the others have not gone on")
faults, notes_validation = Faults(), True
history = model.fit(
    **data_of(KIND, x, y),
    epochs=EPOCHS,
    verbose=0,
    validation_data=(x[:VALIDATED], y[:VALIDATED]),
    validation_batch_size=BATCH,
    callbacks=[faults, tfc.MetricAverageCallback(), tfc.Elastic(global_batch=GLOBAL_BATCH)],
)
notes_validation, model.test_function = False, None
alone = model.evaluate(x[:VALIDATED], y[:VALIDATED], batch_size=BATCH, verbose=0, return_dict=True)
(DIRECTORY / f"end-{ME}.json").write_text(
    json.dumps(
        {
            "rank": tfc.rank(),
            "size": tfc.size(),
            "history": history.history,
            "epochs": history.epoch,
            "weights": [weight.tobytes().hex() for weight in model.get_weights()],
            "iterations": int(model.optimizer.iterations),
            "calls": calls,
            "traced alone": traces,
            "alone": alone,
        }
    )
)
