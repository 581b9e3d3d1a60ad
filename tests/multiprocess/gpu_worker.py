"""One rank on a stand-in GPU, of which one may be killed in the middle: gpu_worker.py VICTIM DIRECTORY."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from standin import GpuArray, host

import tfcollective as tfc

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent ends us in any case, a little later
VICTIM, DIRECTORY = int(sys.argv[1]), Path(sys.argv[2])
tfc.init()
world = tfc.get_communicator()
array = GpuArray(np.ones(1000, np.float32), tfc.rank())
result = GpuArray(np.zeros(1000, np.float32), tfc.rank())
record: dict[str, object] = {"error": None, "steps": 0}
try:
    for step in range(20):
        if step == 10 and tfc.rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        world.allreduce(array, op=tfc.Sum, out=result, name="gradient")
        world.ticket().wait()
        assert (host(result) == tfc.size()).all()
        record["steps"] = step + 1
    tfc.shutdown()
except tfc.TfCollectiveError as error:
    record.update(error=type(error).__name__, peer=getattr(error, "peer", None), message=str(error))
    host(result)  # the GPU's stream is not held up by the dead peer
    raise
finally:
    (DIRECTORY / f"{os.environ['TFCOLLECTIVE_TASK'].rpartition(':')[2]}.json").write_text(json.dumps(record))
