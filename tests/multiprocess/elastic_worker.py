"""One rank of an elastic job: elastic_worker.py DIRECTORY STEPS [FAULT ...].

A FAULT is PHASE:TASK:STEP[:HOW]: at this step the process of worker TASK ends, by SIGKILL or as HOW says (raise, exit,
leave, stop, late, held: it waits until the test has made the file "go"). Each rank adds its step's sum to a total that
every world agrees on, and leaves what it sees in DIRECTORY: "began" when the first step is done, "changed" when the
first one in a later world is.

How long anything takes depends on the machine, so variables say what has to have happened:

GENERATION: training does not end before a step of this generation.
SIZE: nor before a step of so many ranks.
AT_ONCE: replacements join as soon as they can, and not only when the others have gone on without the lost rank.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective import elastic
from tfcollective._base.settings import Settings
from tfcollective._runtime.communicator import NativeCommunicator

DIRECTORY, STEPS, FAULTS = Path(sys.argv[1]), int(sys.argv[2]), [one.split(":") for one in sys.argv[3:]]
ME = int(os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2])
GENERATION, SIZE = int(os.environ.get("GENERATION", "1")), int(os.environ.get("SIZE", "0"))
PAUSE = 0.01
seen: list[dict[str, object]] = []


def wait_for(event: str) -> None:
    """Until another rank says that this has happened."""
    while not (DIRECTORY / event).exists():
        time.sleep(0.02)


def fails_here(phase: str, step: int) -> None:
    for fault in FAULTS:
        if (fault[0], int(fault[1]), int(fault[2])) != (phase, ME, step):
            continue
        with (DIRECTORY / f"fault-{ME}").open("w") as file:
            file.write(repr(time.time()))
        how = fault[3] if len(fault) > 3 else "kill"
        if how in ("late", "held"):
            wait_for("began" if how == "late" else "go")
            return
        if how == "raise":
            raise ValueError("the data is rotten")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), {"leave": signal.SIGTERM, "stop": signal.SIGSTOP}.get(how, signal.SIGKILL))


class State(elastic.ObjectState):
    """Ends where the arguments say while it is saved or taken over."""

    def save(self) -> None:
        fails_here("commit", self.step)
        super().save()

    def take(self, root: int) -> None:
        fails_here("sync", self.step)
        super().take(root)


def end_in_connect() -> None:
    """The second and later worlds: ends where the arguments say while the ranks connect."""
    connect, calls = NativeCommunicator.connect, []

    def counted(*arguments: object, **options: object) -> NativeCommunicator:
        calls.append(1)
        fails_here("connect", len(calls))
        return connect(*arguments, **options)

    NativeCommunicator.connect = counted


end_in_connect()
fails_here("init", 0)
if Settings.load().newcomer is not None and "AT_ONCE" not in os.environ:
    wait_for("changed")
tfc.init()
found = {name: value for name, value in os.environ.items() if "RANK" in name or "SIZE" in name or "HOROVOD" in name}
(DIRECTORY / f"start-{ME}.json").write_text(json.dumps({**found, "local rank": tfc.local_rank()}))
state = State(step=0, total=0, sizes=[], generation=0)


def is_done(state: State) -> bool:
    """All ranks see the same here."""
    return state.step >= STEPS and state.generation >= GENERATION and SIZE in (0, *state.sizes[-1:])


@elastic.run
def train(state: State) -> None:
    begun = time.time()
    while not is_done(state):
        fails_here("forward", state.step)
        values = np.full(50_000, 1, np.int64)
        if any(one[0] == "allreduce" and (int(one[1]), int(one[2])) == (ME, state.step) for one in FAULTS):
            threading.Timer(0.05, fails_here, ("allreduce", state.step)).start()
            time.sleep(0.2)  # the others are in the operation
        summed = int(tfc.get_communicator().allreduce(values, tfc.Sum)[0])
        assert summed == tfc.size()
        state.step += 1
        state.total += summed
        state.sizes = [*state.sizes, summed]
        state.generation = tfc._runtime.generation()
        state.commit()
        if not seen or seen[-1]["begun"] != begun:
            seen.append({"begun": begun, "first": time.time(), "step": state.step, "size": tfc.size()})
            (DIRECTORY / ("began" if state.generation == 1 else "changed")).touch()
        time.sleep(PAUSE)


train(state)
(DIRECTORY / f"end-{ME}.json").write_text(
    json.dumps({"rank": tfc.rank(), "size": tfc.size(), "total": state.total, "sizes": state.sizes, "seen": seen})
)
