"""A second world in the same processes: functions traced in the first one go on working. Also forks and speed."""

from __future__ import annotations

import os
import time

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime

variable = tf.Variable([1.0, 2.0])


@tf.function
def step(x: tf.Tensor) -> tf.Tensor:
    with tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum) as tape:
        loss = tf.reduce_sum(variable * x)
    return tape.gradient(loss, variable) + tfc.allreduce(x)


for generation in range(2):
    tfc.init()
    start = time.perf_counter()
    for _ in range(3):
        np.testing.assert_array_equal(step(tf.ones(2)), np.full(2, tfc.size() + 1.0))
    world = runtime.get_communicator()
    np.testing.assert_array_equal(world.allreduce(np.ones(2)), np.ones(2))
    child = os.fork()
    if child == 0:
        os._exit(0)  # exits without shutdown(); the parent's world must not notice
    os.waitpid(child, 0)
    tfc.barrier()
    tfc.shutdown()
    assert not tfc.is_initialized()
    assert world.closed
    try:
        step(tf.ones(2))
    except (tf.errors.FailedPreconditionError, RuntimeError) as error:
        assert "init" in str(error), error
    else:
        raise AssertionError("an operation without a world")
    print("ok generation", generation, flush=True)
