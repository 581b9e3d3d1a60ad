"""Signals, and what other threads have to tell the main thread of an agent, as bytes on a descriptor."""

from __future__ import annotations

import contextlib
import signal
import socket

__all__ = ["COORDINATOR_LOST", "STOP_SIGNALS", "Interrupts"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
COORDINATOR_LOST = 0  # among the numbers of signals
_READ_BYTES = 1 << 10


class Interrupts:
    """A context manager of the main thread: while it is open, children that end, requests to stop and the loss of the
    coordinator interrupt nothing and can be waited for."""

    def __enter__(self) -> Interrupts:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _ignore) for number in (signal.SIGCHLD, *STOP_SIGNALS)}
        return self

    def __exit__(self, *unused: object) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._reader.close()
        self._writer.close()

    def coordinator_lost(self) -> None:
        """From any thread."""
        with contextlib.suppress(OSError):  # the agent has ended meanwhile
            self._writer.send(bytes([COORDINATOR_LOST]))

    def fileno(self) -> int:
        """What to wait on before :meth:`read`."""
        return self._reader.fileno()

    def read(self) -> bytes:
        """The numbers of the signals that came, and ``COORDINATOR_LOST``."""
        try:
            return self._reader.recv(_READ_BYTES)
        except BlockingIOError:
            return b""


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for that."""
