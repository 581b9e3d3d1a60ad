"""A rank that sums over all, STEPS (3) times and 0.1 s apart. CRASH_ONCE names a folder: rank 1 of the first start ends
with code 3. HANDLES_SIGTERM: the program handles the signal itself and ends with 7."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tfcollective

if os.environ.get("HANDLES_SIGTERM"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
tfcollective.init()
world = tfcollective.get_communicator()
total = world.allreduce(np.full(3, world.rank + 1.0), op=tfcollective.Sum)
place = f"local size {tfcollective.local_size()} uid {os.getuid()}"
print("rank", world.rank, "of", world.size, "sum", total[0], place, flush=True)
crash = os.environ.get("CRASH_ONCE")
if crash and world.rank == 1 and not Path(crash, "crashed").exists():
    Path(crash, "crashed").touch()
    os._exit(3)
for _ in range(int(os.environ.get("STEPS", "3"))):
    world.allreduce(np.ones(1000))
    time.sleep(0.1)
tfcollective.shutdown()
print("done", flush=True)
