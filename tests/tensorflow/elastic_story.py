"""What happens to the ranks of a job that is written as for Horovod: one is lost, the others go on without it, wait
until its replacement has come, and end with it. The job's arguments: DIRECTORY LOST."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

RANKS, STEPS = 3, 12
DIRECTORY, LOST = Path(sys.argv[1]), int(sys.argv[2])
_PAUSE, _WAITS = 0.1, 2400


class Story:
    """This process's part in it.

    Attributes:
        resets: for the job: the sizes of the worlds that its reset callback has seen.
    """

    def __init__(self):
        self.task = int(os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2])
        self.resets = []
        self._waiting = DIRECTORY / "waiting"

    def end_here(self):
        """Ends the rank that is to be lost."""
        if self.task == LOST:
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_for_replacement(self, state, hvd):
        """Trains no further until the world is whole. All ranks look equally often."""
        self._waiting.touch()
        for _ in range(_WAITS):
            if hvd.size() == RANKS:
                return
            state.check_host_updates()
            time.sleep(_PAUSE)
        raise AssertionError("no replacement has come")

    def wait_if_replacement(self):
        """A replacement is ready no earlier than the others wait for it."""
        for _ in range(_WAITS if self.task >= RANKS else 0):
            if self._waiting.exists():
                return
            time.sleep(_PAUSE)

    def finish(self, hvd, model, **seen):
        """Leaves what this rank has at the end."""
        weights = [np.asarray(weight).tobytes().hex() for weight in model.get_weights()]
        end = {"rank": hvd.rank(), "weights": weights, "resets": self.resets, **seen}
        (DIRECTORY / f"end-{self.task}.json").write_text(json.dumps(end))
