"""The events that wake the main thread of an agent: its launcher's orders, signals, and news from other threads.

Orders come line by line, over stdin or from the coordinator. Their reader sees no difference: what the coordinator has
is written into a socket, whose other end is read as stdin is.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from tfcollective._base.processes import PASSED_ON, STACKS_SIGNAL, not_ignored
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.store_keys import orders_key

_READ_BYTES = 1 << 16


class Orders:
    """Lines from a descriptor, without a buffer that a selector would not know of.

    Attributes:
        ended: whether the other end is closed: the launcher is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._lines: list[bytes] = []
        self.ended = False

    def fileno(self) -> int:
        """The descriptor to wait on before :meth:`fill`."""
        return self._descriptor

    def fill(self) -> None:
        """Reads once, and blocks until there is something to read; sets ``ended`` at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except ConnectionError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines

    def next(self) -> bytes | None:
        """The next line that has come in full, or None."""
        return self._lines.pop(0) if self._lines else None


def follow_orders(client: CoordinatorClient, number: int, writer: socket.socket) -> None:
    """Asks the coordinator for the orders of the node ``number`` and writes each to ``writer``, until that is closed.

    Runs on a thread of its own, with a client of its own: it waits for long. Heartbeats decide when the coordinator has
    not answered for too long.
    """
    channel = Channel(client, cancelled=lambda: writer.fileno() < 0)
    with suppress(OSError):  # the agent has ended and closed it
        for line in channel.receive(orders_key(number)):
            writer.sendall(str(line).encode() + b"\n")


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
COORDINATOR_LOST = 0  # among the numbers of signals


class Interrupts:
    """A context manager of the main thread: while it is open, children that end, requests to stop, signals for the
    processes and the loss of the coordinator interrupt nothing and can be waited for."""

    def __enter__(self) -> Interrupts:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        handled = (signal.SIGCHLD, *not_ignored((*STOP_SIGNALS, *PASSED_ON)))
        self._handlers = {number: signal.signal(number, _ignore) for number in handled}
        self._handlers[STACKS_SIGNAL] = signal.signal(STACKS_SIGNAL, signal.SIG_IGN)  # also in what we start
        return self

    def __exit__(self, *unused: object) -> None:
        signal.set_wakeup_fd(self._fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._reader.close()
        self._writer.close()

    def coordinator_lost(self) -> None:
        """Wakes the main thread because the coordinator is lost; from any thread."""
        with suppress(OSError):  # the agent has ended meanwhile
            self._writer.send(bytes([COORDINATOR_LOST]))

    def fileno(self) -> int:
        """The descriptor to wait on before :meth:`read`."""
        return self._reader.fileno()

    def read(self) -> bytes:
        """The numbers of the signals that came, and ``COORDINATOR_LOST``."""
        try:
            return self._reader.recv(_READ_BYTES)
        except BlockingIOError:
            return b""


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for that."""
