"""The wait for the other ranks inside the native library, which knows neither Ctrl-C nor the ends of processes that
have not connected yet."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from tfcollective.clock import Deadline
from tfcollective.errors import CoordinatorError, PeerLostError
from tfcollective.log import get_logger

__all__ = ["call_watched"]

_LOG = get_logger(__name__)
_Result = TypeVar("_Result")
# All is well as a rule, and then the ranks are connected before this.
_PATIENCE_S = 0.3
# Whoever was connected to the lost rank finds that out by itself, and can say more.
_OWN_WORDS_S = 0.2


def call_watched(
    call: Callable[[], _Result], find_lost: Callable[[], tuple[int, str] | None], deadline: Deadline
) -> _Result:
    """Runs a native call that waits for other ranks on another thread: Ctrl-C ends the wait at once, and so does the
    end of a rank.

    Args:
        call: may block; it is left to itself when the wait ends before it does.
        find_lost: blocks for a while; gives (rank, what happened) once a rank has ended. Called only when ``call``
            takes long.
        deadline: of ``call`` itself. What ends after it ends because of it, and ``call`` knows who was missing.

    Raises:
        PeerLostError: a rank has ended meanwhile.
        Whatever ``call`` raises.
    """
    answers: queue.SimpleQueue[Callable[[], _Result]] = queue.SimpleQueue()
    done = threading.Event()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # handed to the caller, whatever it is
            answers.put(_raising(error))
        else:
            answers.put(lambda: result)
        done.set()

    def watch() -> None:
        lost = None
        while lost is None and not done.wait(_PATIENCE_S):
            lost = _asked(find_lost)
        if lost is not None and not done.wait(_OWN_WORDS_S) and not deadline.expired():
            rank, what = lost
            answers.put(_raising(PeerLostError(f"{what} before all ranks were connected", peer=rank)))

    for name, work in (("tfcollective-connect", run), ("tfcollective-watch", watch)):
        threading.Thread(target=work, name=name, daemon=True).start()
    return answers.get()()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _asked(find_lost: Callable[[], tuple[int, str] | None]) -> tuple[int, str] | None:
    try:
        return find_lost()
    except CoordinatorError as error:
        _LOG.debug("cannot ask the coordinator for lost ranks: %s", error)
        return None
