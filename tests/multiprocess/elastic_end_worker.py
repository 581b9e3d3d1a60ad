"""One rank of an elastic job at the end of its training: elastic_end_worker.py DIRECTORY STORY.

Ranks 0 to 2 are workers 0 to 2; a replacement joins once a file "join" is there, which no rank makes unless its story
says so. What happens, each story says.
"""

import atexit
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tfcollective as tfc
from tfcollective import elastic
from tfcollective._runtime.communicator import NativeCommunicator

DIRECTORY, STORY = Path(sys.argv[1]), sys.argv[2]
ME = int(os.environ["TFCOLLECTIVE_TASK"].rpartition(":")[2])
deadline = time.monotonic() + 240


def wait_for(*events):
    """Until these files are there."""
    while not all((DIRECTORY / event).exists() for event in events):
        assert time.monotonic() < deadline, events
        time.sleep(0.02)


def say(event, **what):
    file = DIRECTORY / f".{event}-{ME}"
    file.write_text(json.dumps(what))
    file.rename(DIRECTORY / event)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_end_of(event):
    """Until the process that has said this has ended."""
    wait_for(event)
    while Path(f"/proc/{json.loads((DIRECTORY / event).read_text())['pid']}").exists():
        assert time.monotonic() < deadline, event
        time.sleep(0.02)


def step(state):
    summed = int(tfc.get_communicator().allreduce(np.ones(1000, np.int64), tfc.Sum)[0])
    state.step, state.sizes = state.step + 1, [*state.sizes, summed]
    state.commit()


def steps(state, count):
    while state.step < count:
        step(state)


@elastic.run
def miss_the_end(state):
    """Rank 0 has completed the training, and rank 2 cannot without rank 1."""
    steps(state, 5)
    if ME == 0:
        return
    if ME == 1:
        wait_for("done-0", "last-2")
        die()
    say("last-2", pid=os.getpid())
    steps(state, 6)


@elastic.run
def go_on_without_one_that_lives(state):
    """Rank 2 has completed the training and lives, rank 1 is lost, and rank 0 does the last step again."""
    steps(state, 5)
    if ME == 2:
        return
    if ME == 1:
        wait_for("done-2", "last-0")
        die()
    say("last-0")
    steps(state, 6)


@elastic.run
def fail_and_hang(state):
    """Rank 1 fails by an error of the program, and its process hangs on its way out."""
    steps(state, 5)
    if ME == 1:
        atexit.register(time.sleep, 600)
        raise ValueError("the data is rotten")
    steps(state, 6)


@elastic.run
def take_in_one_that_is_stopped(state):
    """The replacement of rank 1 is stopped while the others connect to it."""
    while not (state.step > 10 and tfc._runtime.generation() >= 4):
        assert time.monotonic() < deadline
        if (state.step, ME) == (5, 1):
            die()
        step(state)
        if tfc._runtime.generation() == 2:
            say("join")


def stop_in_connect():
    connect = NativeCommunicator.connect

    def stopped(*arguments, **options):
        os.kill(os.getpid(), signal.SIGSTOP)
        return connect(*arguments, **options)

    NativeCommunicator.connect = stopped


@elastic.run
def train(state):
    """In the second of two trainings rank 1 is lost."""
    steps(state, 5)
    if state.second and ME == 1 and tfc._runtime.generation() == 1:
        die()
    steps(state, 10)


wait_for(*(["join"] if ME > 2 else []))
tfc.init()
if STORY == "miss":
    miss_the_end(elastic.ObjectState(step=0, sizes=[]))
    say(f"done-{ME}")
    wait_for_end_of("last-2")
elif STORY == "lives":
    go_on_without_one_that_lives(elastic.ObjectState(step=0, sizes=[]))
    say(f"done-{ME}")
    wait_for("done-0")
    say("end-0-seen", size=tfc.size())
elif STORY == "hang":
    fail_and_hang(elastic.ObjectState(step=0, sizes=[]))
elif STORY == "stopped":
    if ME > 2:
        stop_in_connect()
    take_in_one_that_is_stopped(elastic.ObjectState(step=0, sizes=[]))
elif STORY == "crash":
    miss_the_end(elastic.ObjectState(step=0, sizes=[]))
    say(f"done-{ME}")
    wait_for_end_of("last-2")
    os._exit(5)
else:
    train(elastic.ObjectState(step=0, sizes=[], second=False))
    say(f"done-{ME}")
    state = elastic.ObjectState(step=0, sizes=[], second=True)
    train(state)
    say(f"second-{ME}", sizes=state.sizes)
