"""Signs of life, each on a thread of its own: the agent's for its launcher, and the coordinator's for the agent."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tfcollective.control.client import CoordinatorClient
from tfcollective.errors import CoordinatorError
from tfcollective.log import get_logger

__all__ = ["CoordinatorWatch", "Pulse", "Silence"]

_LOG = get_logger(__name__)
_BEAT_S = 1.0
_ASK_S = 3.0
_ASK_AGAIN_S = 1.0


class Pulse:
    """Tells the launcher again and again that this process runs: one that was stopped by a signal says nothing.

    ``descriptor`` is that of a socket whose other end the launcher has; with anything else nobody listens.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def start(self) -> None:
        """Starts the thread; it ends with the process or with the launcher."""
        threading.Thread(target=self._run, name="tfc-pulse", daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as launcher:
            while True:
                launcher.sendall(b".")
                time.sleep(_BEAT_S)


class Silence:
    """Judges how long the coordinator has said nothing: pure; times are those of one monotonic clock in seconds.

    One failure is not enough, however long ago the last answer was: this process may have been stopped meanwhile.
    """

    def __init__(self, limit: float, now: float) -> None:
        self._limit = limit
        self._heard = now
        self._failures = 0

    def heard(self, now: float) -> None:
        """It has answered."""
        self._heard = now
        self._failures = 0

    def failed(self, now: float) -> float | None:
        """It has not; for how long by now, when that is too long, else None."""
        self._failures += 1
        lasts = now - self._heard
        return lasts if self._failures > 1 and lasts >= self._limit else None


class CoordinatorWatch:
    """Finds out that the coordinator is gone: then nobody is left who could tell this agent to stop.

    Args:
        client: of this watch alone; its ``reply_timeout`` is short.
        limit: how long (s) the coordinator may be silent.
        on_lost: called once, on the thread.
    """

    def __init__(self, client: CoordinatorClient, limit: float, on_lost: Callable[[], None]) -> None:
        self._client = client
        self._limit = limit
        self._on_lost = on_lost

    def start(self) -> None:
        """Starts the thread; it ends with the process or with the coordinator."""
        threading.Thread(target=self._run, name="tfc-watch", daemon=True).start()

    def _run(self) -> None:
        silence = Silence(self._limit, time.monotonic())
        while True:
            pause = _ASK_S
            try:
                self._client.ping()
                silence.heard(time.monotonic())
            except CoordinatorError as error:
                pause = _ASK_AGAIN_S
                lasts = silence.failed(time.monotonic())
                if lasts is not None:
                    _LOG.error("agent: %s has not answered for %.0f s: ending the ranks", error, lasts)
                    self._on_lost()
                    return
            time.sleep(pause)
