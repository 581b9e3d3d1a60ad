"""One rank of an elastic job: preemption_worker.py DIRECTORY SIZE [HOW:TASK ...].

It trains until there are SIZE ranks, and five steps more; leaves in DIRECTORY what it sees at its end. HOW says what
worker TASK does: "hangs" in its second step, without a commit; "quits" with exit code 0 when it gets SIGTERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective import elastic

DIRECTORY, SIZE, DEEDS = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
ME = int(os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2])

(DIRECTORY / f"pid-{ME}").write_text(f"{os.getppid()}")
tfc.init()
state = elastic.ObjectState(step=0, total=0, sizes=[], after=0)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    while state.after < 5:
        if f"hangs:{ME}" in DEEDS and state.step == 1:
            (DIRECTORY / "hangs").touch()
            time.sleep(600)
        summed = int(tfc.get_communicator().allreduce(np.ones(1000, np.int64), tfc.Sum)[0])
        state.step += 1
        state.total += summed
        state.sizes = [*state.sizes, summed]
        state.after += summed == SIZE
        state.commit()
        (DIRECTORY / "began").touch()
        time.sleep(0.02)


if f"quits:{ME}" in DEEDS:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
train(state)
(DIRECTORY / f"end-{ME}.json").write_text(json.dumps({"total": state.total, "sizes": state.sizes}))
