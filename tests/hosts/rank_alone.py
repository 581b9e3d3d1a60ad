"""One rank without a launcher: rank_alone.py RANK ADDRESS MODE.

Says where it listens, reads where all ranks do, and then calls collectives (MODE ``busy``) or does nothing (``idle``)
until its world ends. Says how far it has come, and what ended it, in lines of JSON. MODE ``stopRANK``: as ``busy``, and
that rank stops itself once, before the others send it more than a connection holds.
"""

import json
import os
import signal
import sys
import time

import numpy as np

from tfcollective._base.errors import CollectiveError
from tfcollective._runtime.communicator import CommunicatorOptions, Listener, NativeCommunicator, Sum

RANK, ADDRESS, MODE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
VALUES = np.ones(8 << 20, np.float32)  # more than a connection holds


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def one_round(world: NativeCommunicator, number: int) -> None:
    """Raises what has ended the world."""
    if MODE == "idle":
        time.sleep(0.1)  # it looks now and then, as a rank that computes does at its next operation
        failure = world.failure()
        if failure is not None:
            raise failure
        return
    assert (world.allreduce(VALUES, Sum) == world.info().size).all()
    if f"stop{RANK}" == MODE and number == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    assert (world.broadcast(VALUES, 1) == 1).all()


listener = Listener(ADDRESS, ADDRESS)
say(address=listener.address)
addresses = json.loads(sys.stdin.readline())
options = CommunicatorOptions(op_timeout=300)
with NativeCommunicator.connect(
    listener, rank=RANK, addresses=addresses, key=b"k" * 32, options=options
) as communicator:
    rounds = 0
    try:
        while True:
            one_round(communicator, rounds)
            rounds += 1
            if rounds % 5 == 1:
                say(rounds=rounds)
    except CollectiveError as error:
        say(error=type(error).__name__, text=str(error))
