"""A rank of an elastic job that trains a model in a loop: job_elastic.py DIRECTORY STEPS KIND VICTIM AT.

KIND is dense, sparse, sets or compiled. Worker VICTIM kills itself at step AT; with LEAVES in the environment it leaves
the world instead, and the others come to that step afterwards. Each rank leaves in DIRECTORY what it has seen.

How long anything takes depends on the machine: its replacement joins when a file "changed" is there, which the others
make with WHOLE in the environment, once they have gone on without it; and then they train until the world is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime
from tfcollective import task
from tfcollective._base.errors import InvalidArgumentError
from tfcollective.keras.elastic import KerasState

DIRECTORY, STEPS, KIND, VICTIM, AT = (
    Path(sys.argv[1]),
    int(sys.argv[2]),
    sys.argv[3],
    int(sys.argv[4]),
    int(sys.argv[5]),
)
WHOLE = "WHOLE" in os.environ
NEWCOMER = "TFCOLLECTIVE_NEWCOMER" in os.environ
CHANGED = DIRECTORY / "changed"
deadline = time.monotonic() + 240

tfc.init()
me = task().index
keras = tf.keras
inputs = keras.layers.Input((4,), dtype="int32")
if KIND == "sparse":
    hidden = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
else:
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, activation="tanh")(inputs))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
traces: list[int] = []
sizes: list[int] = []


@tf.function(jit_compile=KIND == "compiled")
def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    traces.append(1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    tape = tfc.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


pair, others = tfc.ProcessSet([0, 1]), tfc.ProcessSet([1, 2])
if KIND == "sets" and not NEWCOMER:
    tfc.add_process_set(pair)
    tfc.add_process_set(others)
state = KerasState(model, optimizer, step=0, whole_again=0)
sets_seen: list[object] = []


def try_sets() -> object:
    """What a set whose members live sums up, and what the other one says."""
    try:
        tfc.allreduce(tf.ones(3), op=tfc.Sum, process_set=others, name="others")
        ended = ""
    except InvalidArgumentError as error:
        ended = str(error)
    summed = float(tfc.allreduce(tf.ones(3), op=tfc.Sum, process_set=pair, name="pair")[0]) if pair.included() else 0.0
    return [summed, pair.ranks, ended]


def is_done(state: KerasState) -> bool:
    """All ranks see the same here."""
    return state.step >= STEPS and (not WHOLE or state.whole_again >= 5)


def leave_or_wait() -> None:
    left = DIRECTORY / "left"
    if me == VICTIM:
        tfc.shutdown()
        left.touch()
        sys.exit(3)
    while not left.exists():
        assert time.monotonic() < deadline, "it has not left"
        time.sleep(0.05)
    tfc.allreduce(tf.ones(1), name="not agreed on yet")


@tfc.elastic.run
def train(state: KerasState) -> None:
    if KIND == "sets" and tfc.size() == 2:
        sets_seen.append(try_sets())
    while not is_done(state):
        assert time.monotonic() < deadline, "no replacement has come"
        if state.step == AT and "LEAVES" in os.environ:
            leave_or_wait()
        elif (state.step, me) == (AT, VICTIM):
            os.kill(os.getpid(), signal.SIGKILL)
        random = np.random.default_rng((state.step, tfc.rank()))
        x = random.integers(0, 50, (8, 4))
        step(tf.constant(x, tf.int32), tf.constant(x.sum(1, keepdims=True) / 100, tf.float32))
        state.step += 1
        sizes.append(tfc.size())
        if WHOLE and tfc.size() == 2:
            CHANGED.touch()
            time.sleep(0.02)  # the replacement needs the machine
        state.whole_again += runtime.generation() > 1 and tfc.size() == 3
        state.commit()


while NEWCOMER and not CHANGED.exists():
    assert time.monotonic() < deadline, "the others have not gone on"
    time.sleep(0.05)
train(state)
weights = b"".join(variable.numpy().tobytes() for variable in model.trainable_variables)
result = {
    "rank": tfc.rank(),
    "traces": len(traces),
    "sizes": sizes,
    "iterations": int(optimizer.iterations),
    "weights": hashlib.sha256(weights).hexdigest(),
    "sets": sets_seen,
}
(DIRECTORY / f"end-{me}.json").write_text(json.dumps(result))
