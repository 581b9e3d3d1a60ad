"""Training steps that are traced, run and dropped one after the other: their plans are given back."""

from __future__ import annotations

import gc
import os

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime

FUNCTIONS = 64  # a world has channels for 61 plans


def shared_memory() -> int:
    """Bytes of this process's shared memory that are really there."""
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:tfcollective" in os.readlink(f"/proc/self/fd/{fd}"):
                total += os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return total


def train(number: int) -> None:
    """A new function with a variable of a size of its own, hence with a plan of its own."""
    variable = tf.Variable(np.ones(20000 + number, np.float32))

    @tf.function
    def step() -> tf.Tensor:
        with tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum) as tape:
            loss = tf.reduce_sum(variable * variable)
        return tape.gradient(loss, variable)

    for _ in range(2):
        np.testing.assert_array_equal(step(), np.full(20000 + number, 2.0 * tfc.size(), np.float32))


tfc.init()
most = 0
world = runtime.get_communicator()
world.start_timeline(100000)
for number in range(FUNCTIONS):
    train(number)
    if number % (3 + tfc.rank()) == 0:
        gc.collect()  # at other times on other ranks
    most = max(most, shared_memory())
intervals, _ = world.stop_timeline()
channels = {interval.channel for interval in intervals if "/bucket " in interval.name and interval.nbytes}
assert 1 <= len(channels) < 40, channels
assert min(channels) > 2, "a bucket was matched by name"
assert most < 60 << 20, most
print("ok", len(channels), most >> 20, flush=True)
tfc.shutdown()
