"""The orders of an agent's launcher, line by line: over its stdin, or from the coordinator.

Their reader sees no difference: what the coordinator has is written into a socket, whose other end is read as stdin is.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from tfcollective.agent.protocol import orders_key
from tfcollective.control.channel import Channel
from tfcollective.control.client import CoordinatorClient

__all__ = ["Orders", "follow_orders"]

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
        """What to wait on before :meth:`fill`."""
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
