"""Ctrl-C on rank 0 while it waits for rank 1. Usage: job_interrupt.py KIND."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime

tfc.init()
tfc.barrier()
traced = tf.function(lambda x: tfc.allreduce(x))
if tfc.rank() == 1:
    time.sleep(30)  # the time that rank 0 would wait for without Ctrl-C
    sys.exit(0)
interrupted = []


def interrupt() -> None:
    while not runtime.get_communicator().info().pending:
        time.sleep(0.05)  # the main thread is on its way into the operation
    interrupted.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt, daemon=True).start()
try:
    if sys.argv[1] == "numpy":
        runtime.get_communicator().allreduce(np.ones(3))
    elif sys.argv[1] == "eager":
        tfc.allreduce(tf.ones(3))
    else:
        traced(tf.ones(3))
finally:
    print(f"back after {time.monotonic() - interrupted[0]:.2f} s", flush=True)
