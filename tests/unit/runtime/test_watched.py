"""A native call that waits for other ranks, with a watcher that checks whether they still exist."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from time_limits import within

from tfcollective.clock import Deadline
from tfcollective.errors import CoordinatorError, PeerLostError
from tfcollective.runtime.native import call_watched

LATER = Deadline.after(3600)


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a call may wait for; set at the end, so that its thread ends."""
    event = threading.Event()
    yield event
    event.set()


def test_the_result_comes_back_and_the_coordinator_is_not_asked() -> None:
    asked: list[int] = []
    quiet = within(20)  # on a busy machine even this call may take long
    assert call_watched(lambda: 7, lambda: asked.append(1), LATER, quiet=quiet) == 7
    with pytest.raises(ZeroDivisionError):
        call_watched(lambda: 1 // 0, lambda: asked.append(1), LATER, quiet=quiet)
    assert asked == []


def test_the_end_of_a_rank_ends_the_wait(stuck: threading.Event) -> None:
    begin = time.monotonic()
    with pytest.raises(PeerLostError, match="rank 2 was killed before all ranks were connected") as caught:
        call_watched(stuck.wait, lambda: (2, "rank 2 was killed"), LATER)
    assert caught.value.peer == 2
    assert time.monotonic() - begin < within(5)


def test_a_coordinator_that_does_not_answer_ends_nothing(stuck: threading.Event) -> None:
    answers = iter([CoordinatorError("gone"), None, (1, "rank 1 ended")])

    def find_lost() -> tuple[int, str] | None:
        answer = next(answers)
        if isinstance(answer, CoordinatorError):
            raise answer
        return answer

    with pytest.raises(PeerLostError, match="rank 1 ended"):
        call_watched(stuck.wait, find_lost, LATER)


def test_what_the_call_itself_says_comes_first() -> None:
    found = threading.Event()

    def call() -> None:
        assert found.wait(within(20))
        raise PeerLostError("rank 1 says why")

    def find_lost() -> tuple[int, str]:
        found.set()
        return 1, "rank 1 ended"

    with pytest.raises(PeerLostError, match="says why"):
        call_watched(call, find_lost, LATER, own_error=within(20))


def test_ctrl_c_ends_the_wait(stuck: threading.Event) -> None:
    called = threading.Event()

    def call() -> None:
        called.set()
        stuck.wait()

    def interrupt() -> None:
        assert called.wait(within(20))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        call_watched(call, lambda: None, LATER)


def test_after_its_deadline_the_call_speaks_for_itself() -> None:
    def call() -> None:
        time.sleep(1)  # longer than any reader waits for its output
        raise TimeoutError("rank 2 did not connect")

    with pytest.raises(TimeoutError, match="rank 2"):
        call_watched(call, lambda: (1, "rank 1 has given up, too"), Deadline.after(0.1))
