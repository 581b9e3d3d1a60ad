"""A native call that waits for other ranks, with a watcher that checks whether they still exist."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from time_limits import within

from tfcollective._base.clock import Deadline, poll
from tfcollective._base.errors import CollectiveAbortedError, CollectiveCancelledError, CoordinatorError, PeerLostError
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._control.identity import Identity
from tfcollective._runtime.communicator import Listener
from tfcollective._runtime.members import GLOBAL_SET, Members
from tfcollective._runtime.native import NativeEngine, call_watched

LATER = Deadline.after(3600)
KEY = b"0123456789abcdef"


class Stuck:
    """A call that lasts until it is cancelled, and what it was cancelled for."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self.causes: list[str] = []
        self.ended = False

    def call(self) -> None:
        self._cancelled.wait()
        self.ended = True
        raise CollectiveCancelledError("cancelled")

    def cancel(self, cause: str) -> None:
        self.causes.append(cause)
        self._cancelled.set()


def never(cause: str) -> None:
    pytest.fail(f"the call was cancelled: {cause}")


def test_a_result_comes_without_asking_the_coordinator() -> None:
    asked: list[int] = []
    quiet = within(20)  # on a busy machine even this call may take long
    assert call_watched(lambda: 7, lambda: asked.append(1), never, LATER, quiet=quiet) == 7
    with pytest.raises(ZeroDivisionError):
        call_watched(lambda: 1 // 0, lambda: asked.append(1), never, LATER, quiet=quiet)
    assert asked == []


def test_missing_connections_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    came = threading.Event()

    def find_lost() -> None:
        if "--port-range names the ports to open" in caplog.text:
            came.set()

    assert call_watched(lambda: came.wait(within(60)), find_lost, never, LATER, quiet=0.01, remind=0.01)


def test_a_lost_rank_ends_wait_and_call() -> None:
    stuck = Stuck()
    with pytest.raises(PeerLostError, match="rank 2 was killed before all ranks were connected") as caught:
        call_watched(stuck.call, lambda: (2, "rank 2 was killed"), stuck.cancel, LATER)
    assert caught.value.peer == 2
    assert stuck.ended
    assert stuck.causes == ["PeerLostError: rank 2 was killed before all ranks were connected"]


def test_a_coordinator_that_does_not_answer_ends_nothing() -> None:
    stuck = Stuck()
    answers = iter([CoordinatorError("gone"), None, (1, "rank 1 ended")])

    def find_lost() -> tuple[int, str] | None:
        answer = next(answers)
        if isinstance(answer, CoordinatorError):
            raise answer
        return answer

    with pytest.raises(PeerLostError, match="rank 1 ended"):
        call_watched(stuck.call, find_lost, stuck.cancel, LATER)


def test_what_the_call_itself_says_comes_first() -> None:
    found = threading.Event()

    def call() -> None:
        assert found.wait(within(20))
        raise PeerLostError("rank 1 says why")

    def find_lost() -> tuple[int, str]:
        found.set()
        return 1, "rank 1 ended"

    with pytest.raises(PeerLostError, match="says why"):
        call_watched(call, find_lost, never, LATER, own_error=within(20))


def test_a_rank_reporting_a_loss_is_blameless() -> None:
    found = threading.Event()

    def call() -> None:
        assert found.wait(within(20))
        raise CollectiveAbortedError("rank 1 stopped: PeerLostError: rank 2 was killed", peer=1)

    def find_lost() -> tuple[int, str]:
        found.set()
        return 2, "rank 2 was killed"

    with pytest.raises(PeerLostError, match="rank 2 was killed before") as caught:
        call_watched(call, find_lost, never, LATER, own_error=within(20))
    assert caught.value.peer == 2


def test_a_rank_stopping_by_itself_is_named() -> None:
    def call() -> None:
        raise CollectiveAbortedError("rank 1 stopped: KeyboardInterrupt", peer=1)

    with pytest.raises(CollectiveAbortedError, match="KeyboardInterrupt"):
        call_watched(call, lambda: None, never, LATER)


def test_ctrl_c_ends_the_wait_and_the_call() -> None:
    stuck = Stuck()
    called = threading.Event()

    def call() -> None:
        called.set()
        stuck.call()

    def interrupt() -> None:
        assert called.wait(within(20))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        call_watched(call, lambda: None, stuck.cancel, LATER)
    assert stuck.ended
    assert stuck.causes == ["KeyboardInterrupt"]


def test_after_its_deadline_the_call_speaks_for_itself() -> None:
    def call() -> None:
        time.sleep(1)  # longer than any reader waits for its output
        raise TimeoutError("rank 2 did not connect")

    with pytest.raises(TimeoutError, match="rank 2"):
        call_watched(call, lambda: (1, "rank 1 has given up, too"), never, Deadline.after(0.1))


def connecting_threads() -> list[str]:
    """The names of the threads, native ones included, by which this process connects to a world or is in one."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:  # it has ended
            continue
    return [name for name in names if name.startswith(("tfc-monitor", "tfc-progress"))]


def open_files() -> Counter[str]:
    """Returns the targets of this process's descriptors, each with their number."""
    targets: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets[os.readlink(descriptor)] += 1
        except OSError:  # the descriptor of this listing, or one that another thread has closed
            continue
    return targets


def interrupted(connect: Callable[[], object]) -> None:
    """Ctrl-C, once the native library connects."""

    def interrupt() -> None:
        assert poll(lambda: connecting_threads() or None, within(20), 0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        connect()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupted_connect_leaves_nothing_open(rank: int) -> None:
    identity = Identity(TaskKey("worker", rank), 2, None, "job", KEY, "launcher", "node")
    engine = NativeEngine(Settings(), identity)
    with Listener("127.0.0.1", "node") as absent:
        gc.collect()
        before = open_files()
        listener = engine.listen()
        addresses = [absent.address, absent.address]
        addresses[rank] = listener.address
        interrupted(lambda: engine.connect(listener, Members(GLOBAL_SET, (0, 1), rank), addresses))
        assert not open_files() - before  # not their number: what other tests have left may go meanwhile
    # The kernel lists threads that have ended a little longer.
    assert poll(lambda: not connecting_threads() or None, within(5), 0.01) is not None
