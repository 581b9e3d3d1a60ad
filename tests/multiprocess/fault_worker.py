"""One rank of a job in which one rank fails as the arguments say: fault_worker.py FAULT PHASE VICTIM DIRECTORY.

Writes what it sees to DIRECTORY/<rank>.json; the victim notes the moment of its end in DIRECTORY/fault.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective._base.settings import Settings
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.identity import discover
from tfcollective._control.messages import Status
from tfcollective._runtime.communicator import NativeCommunicator

FAULT, PHASE, VICTIM, DIRECTORY = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
RANK = int(os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2])
IDLE_SECONDS = 0.4  # the victim ends in the middle of it


def fail() -> None:
    (DIRECTORY / "fault").write_text(repr(time.time()))
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "raise":
        raise ValueError("the disk is on fire")
    sys.exit(3)


def victim_ends_here(phase: str) -> bool:
    return phase == PHASE and RANK == VICTIM


def wait_until_the_others_wait() -> None:
    """In init, as the coordinator sees it; or until it has given up waiting for us."""
    me = discover(Settings.load(), {})
    with CoordinatorClient(me.coordinator, me.key) as client:
        while (status := client.call(Status())).failure is None:
            if sum(task.state == "waiting" for task in status.tasks) == me.world_size - 1:
                return
            time.sleep(0.02)  # the status has no call that waits


def note_connecting() -> None:
    """The victim ends once the others try to connect."""
    connect = NativeCommunicator.connect

    def noted(*arguments: object, **options: object) -> NativeCommunicator:
        if RANK != VICTIM:
            (DIRECTORY / f"connecting-{RANK}").touch()
            return connect(*arguments, **options)
        while len(list(DIRECTORY.glob("connecting-*"))) < len(options["addresses"]) - 1:
            time.sleep(0.02)  # other processes make the files
        return fail()

    NativeCommunicator.connect = noted


def train() -> None:
    if victim_ends_here("rendezvous"):
        wait_until_the_others_wait()
        fail()
    if PHASE == "connect":
        note_connecting()
    tfc.init()
    world = tfc.get_communicator()
    if PHASE == "join":
        join(world)
        return
    if PHASE == "process_set":
        train_in_a_process_set(world)
        return
    values = np.ones(200_000, np.float32)
    for step in range(20):
        if step == 10 and victim_ends_here("allreduce"):
            time.sleep(0.1)  # the others are to be inside the operation
            fail()
        if step == 10 and PHASE == "idle":
            time.sleep(IDLE_SECONDS / 2)
            if RANK == VICTIM:
                fail()
            time.sleep(IDLE_SECONDS / 2)
        result = world.allreduce(values, op=tfc.Sum, name="gradient")
        assert (result == world.size).all()
    if PHASE != "shutdown":
        return
    if RANK == VICTIM:
        fail()
    world.barrier()


def join(world: NativeCommunicator) -> None:
    """All but the victim have no more data; it goes on for a few steps."""
    for step in range(5 if RANK == VICTIM else 1):
        world.allreduce(np.ones(1000), name="gradient")
        if step == 3:
            fail()
    world.join()


def train_in_a_process_set(world: NativeCommunicator) -> None:
    """Ranks 1 and 2 reduce among themselves, rank 0 waits for them; rank 2 is the victim."""
    pair = tfc.add_process_set([1, 2])
    if pair.included():
        members = tfc.get_communicator(pair)
        for step in range(10):
            if step == 5 and RANK == VICTIM:
                time.sleep(0.1)  # the other is to be inside the operation
                fail()
            members.allreduce(np.ones(1000), name="gradient")
    world.barrier(name="end of the epoch")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent ends us in any case, a little later
    record: dict[str, object] = {"error": None, "message": "", "peer": None}
    try:
        train()
    except tfc.TfCollectiveError as error:
        record = {"error": type(error).__name__, "message": str(error), "peer": getattr(error, "peer", None)}
        raise
    finally:
        record["time"] = time.time()
        (DIRECTORY / f"{RANK}.json").write_text(json.dumps(record))


main()
