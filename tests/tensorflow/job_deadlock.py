"""Rank 1 is slow, which is no deadlock; then each of two ranks waits in an operation that the other never calls."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime

tfc.init()
rank = tfc.rank()
gradients = tf.function(lambda: tfc.allreduce(tf.ones(2), name="gradients"))
if rank == 1:
    time.sleep(3)  # three times as long as a rank may stand still
gradients()
print("went on", flush=True)
if rank == 0:
    runtime.get_communicator().allreduce(np.ones(2), name="metrics")
else:
    gradients()
