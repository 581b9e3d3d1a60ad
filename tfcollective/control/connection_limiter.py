"""Limits connections that have not authenticated: ends those that do not prove the job key soon."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Connection", "Doorkeeper"]

_CROWDED_S = 0.5


class Connection(Protocol):
    """What the doorkeeper needs of a connection; ``transport`` is None before it is open and after its end."""

    transport: asyncio.Transport | None


class Doorkeeper:
    """Watches connections from their beginning to their first proved request. Lives on the event loop's thread.

    A connection that sends nothing, or a header byte by byte, never becomes a request that could be refused: without
    this it would hold a descriptor for as long as it likes. None is ended because others come before it had time to
    ask for something: it may be that of a rank.

    Args:
        patience: how long (s) a connection may take to prove the key.
        most: how many may take that long at one time; of more, the oldest have ``crowded`` seconds.
        crowded: that time, from when the connection came.
    """

    def __init__(self, patience: float, most: int, crowded: float = _CROWDED_S) -> None:
        self._patience = patience
        self._most = most
        self._crowded = crowded
        self._unproved: dict[Connection, asyncio.TimerHandle] = {}  # oldest first
        self._hurried: dict[Connection, asyncio.TimerHandle] = {}

    def came(self, connection: Connection) -> None:
        """A connection is about to open."""
        loop = asyncio.get_running_loop()
        self._unproved[connection] = loop.call_later(self._patience, self._end, connection)
        if len(self._unproved) > self._most:
            self._hurry(next(iter(self._unproved)))

    def proved(self, connection: Connection) -> None:
        """A request on it has proved the key: it may stay."""
        timer = self._unproved.pop(connection, None) or self._hurried.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forgets all connections."""
        for connection in [*self._unproved, *self._hurried]:
            self.proved(connection)

    def _hurry(self, connection: Connection) -> None:
        timer = self._unproved.pop(connection)
        timer.cancel()
        came_at = timer.when() - self._patience
        self._hurried[connection] = asyncio.get_running_loop().call_at(came_at + self._crowded, self._end, connection)

    def _end(self, connection: Connection) -> None:
        self.proved(connection)
        if connection.transport is not None:
            connection.transport.abort()
