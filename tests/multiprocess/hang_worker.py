"""One rank of a job in which rank 1 does not come to an all-reduce: hang_worker.py HOW DIRECTORY.

It is in `lost` until DIRECTORY/go is there; then it comes, or fails.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc

HOW, DIRECTORY = sys.argv[1], Path(sys.argv[2])


def lost() -> None:
    if HOW == "loop":
        while True:
            pass
    if HOW == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if HOW == "c":  # holds Python's lock
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (DIRECTORY / "go").exists():
        time.sleep(0.05)  # another process makes the file
    if HOW == "fail":
        raise ValueError("the disk is on fire")


tfc.init()
world = tfc.get_communicator()
for _ in range(3):
    world.allreduce(np.ones(4, np.float32), name="gradient")
if tfc.rank() == 1:
    lost()
world.allreduce(np.ones(4, np.float32), name="gradient")
