"""A rank of an elastic job that trains until the file UNTIL exists; rank 0 says of what size each world is."""

import os
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective import elastic

tfc.init()
state = elastic.ObjectState(step=0, over=False)
until = Path(os.environ["UNTIL"])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    if tfc.rank() == 0:
        print("a world of size", tfc.size(), flush=True)
    while not state.over:
        ends = tfc.rank() == 0 and until.exists()
        state.over = bool(tfc.get_communicator().allreduce(np.array([ends], np.int64), tfc.Max)[0])
        state.step += 1
        if state.over:
            return
        state.commit()
        time.sleep(0.05)


train(state)
