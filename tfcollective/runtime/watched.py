"""The wait for the other ranks inside the native library, which knows neither Ctrl-C nor the ends of processes that
have not connected yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar, cast

from tfcollective.clock import Deadline, on_thread
from tfcollective.errors import CoordinatorError, PeerLostError
from tfcollective.log import get_logger

__all__ = ["call_watched"]

_LOG = get_logger(__name__)
_Result = TypeVar("_Result")
# As a rule all ranks are connected before this, and the coordinator is not asked.
_QUIET_S = 0.3
# A rank that was connected to the lost one finds that out by itself, and its error says more.
_OWN_ERROR_S = 0.2


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
    connecting = on_thread(call, "tfcollective-connect")

    def watch() -> tuple[int, str] | None:
        while not wait([connecting], _QUIET_S).done:
            lost = _asked(find_lost)
            if lost is not None:
                wait([connecting], _OWN_ERROR_S)
                return lost
        return None

    watching = on_thread(watch, "tfcollective-watch")
    wait(cast("list[Future[object]]", [connecting, watching]), return_when=FIRST_COMPLETED)
    if not connecting.done() and not deadline.expired():
        lost = watching.result()
        if lost is not None and not connecting.done():
            rank, what = lost
            raise PeerLostError(f"{what} before all ranks were connected", peer=rank)
    return connecting.result()


def _asked(find_lost: Callable[[], tuple[int, str] | None]) -> tuple[int, str] | None:
    try:
        return find_lost()
    except CoordinatorError as error:
        _LOG.debug("cannot ask the coordinator for lost ranks: %s", error)
        return None
