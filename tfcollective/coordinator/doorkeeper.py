"""Strangers may connect, but not stay: ends connections that do not prove the job key soon."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Connection", "Doorkeeper"]


class Connection(Protocol):
    """What the doorkeeper needs of a connection; ``transport`` is None before it is open and after its end."""

    transport: asyncio.Transport | None


class Doorkeeper:
    """Watches connections from their beginning to their first proved request. Lives on the event loop's thread.

    A connection that sends nothing, or a header byte by byte, never becomes a request that could be refused: without
    this it would hold a descriptor for as long as it likes.

    Args:
        patience: how long (s) a connection may take to prove the key.
        most: how many may be unproved at one time; when there are more, the oldest has to go.
    """

    def __init__(self, patience: float, most: int) -> None:
        self._patience = patience
        self._most = most
        self._unproved: dict[Connection, asyncio.TimerHandle] = {}  # oldest first

    def came(self, connection: Connection) -> None:
        """A connection is about to open."""
        loop = asyncio.get_running_loop()
        self._unproved[connection] = loop.call_later(self._patience, self._end, connection)
        if len(self._unproved) > self._most:
            self._end(next(iter(self._unproved)))

    def proved(self, connection: Connection) -> None:
        """A request on it has proved the key: it may stay."""
        timer = self._unproved.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forgets all connections."""
        for connection in list(self._unproved):
            self.proved(connection)

    def _end(self, connection: Connection) -> None:
        self.proved(connection)
        if connection.transport is None:
            # Many come in one turn of the loop, and the oldest of them is not open yet: it is in the next one.
            asyncio.get_running_loop().call_soon(_abort, connection)
        else:
            _abort(connection)


def _abort(connection: Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()
