"""One rank of an elastic job that trains until DIRECTORY/finish exists: growing_worker.py DIRECTORY.

The ranks of each world leave in DIRECTORY/worlds who they are, one line a generation; each rank how it ended in
DIRECTORY/end-TASK, with the longest step that a change of the world has cost it. With ON_LEAVING=raise one that has
left raises an error on its way out.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective import elastic

DIRECTORY = Path(sys.argv[1])
heard: list[int] = []


class Heard(elastic.ObjectState):
    """Notes what it is told of changes, as programs for Horovod do."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """See :class:`State`."""
        heard.append(update_res)
        super().on_hosts_updated(timestamp, update_res)


ME = os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2]
tfc.init()
# A step takes as long as its slowest rank; this many floats are the state.
state = Heard(step=0, over=False, values=np.zeros(int(os.environ.get("FLOATS", "1000")), np.float32))
seen: list[dict[str, object]] = []
last = 0.0


@elastic.run
def train(state: elastic.ObjectState) -> None:
    global last
    size = tfc.size()
    begun = False
    while not state.over:
        ends = tfc.rank() == 0 and (DIRECTORY / "finish").exists()
        tasks = tfc.get_communicator().allgather(np.array([int(ME)], np.int64))
        over = int(tfc.get_communicator().allreduce(np.array([ends], np.int64), tfc.Max)[0])
        state.step += 1
        state.over = bool(over)
        now = time.monotonic()
        if not begun:
            begun = True
            seen.append({"size": size, "step": state.step, "stood": now - last if last else None})
            if tfc.rank() == 0:
                with (DIRECTORY / "worlds").open("a") as file:
                    file.write(" ".join(map(str, tasks)) + "\n")
        last = now
        if state.over:
            state.save()
            return
        state.commit()
        time.sleep(0.02)


try:
    train(state)
except SystemExit as left:
    if os.environ.get("ON_LEAVING") == "raise":
        raise ValueError("the last checkpoint cannot be written") from left
    raise
(DIRECTORY / f"end-{ME}").write_text(json.dumps({"step": state.step, "rank": tfc.rank(), "seen": seen, "heard": heard}))
