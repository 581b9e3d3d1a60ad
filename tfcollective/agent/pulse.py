"""The agent's signs of life for its launcher."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

from tfcollective.timing import TIMING

__all__ = ["Pulse"]


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
                time.sleep(TIMING.agent_heartbeat)
