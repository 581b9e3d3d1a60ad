"""Limits connections that have not authenticated: ends those that do not prove the job key soon."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Connection", "UnauthenticatedConnectionLimiter"]

_CROWDED_S = 0.5


class Connection(Protocol):
    """What the limiter needs of a connection; ``transport`` is None before it is open and after its end."""

    transport: asyncio.Transport | None


class UnauthenticatedConnectionLimiter:
    """Watches connections from their beginning to their first proved request. Lives on the event loop's thread.

    A connection that sends nothing, or a header byte by byte, never becomes a request that could be refused: without
    this it would hold a descriptor for as long as it likes. None is ended because others come before it had time to
    ask for something: it may be that of a rank.

    Args:
        timeout: how long (s) a connection may take to prove the key.
        most: how many may take that long at one time; of more, the oldest have ``crowded`` seconds.
        crowded: that time, from when the connection came.
    """

    def __init__(self, timeout: float, most: int, crowded: float = _CROWDED_S) -> None:
        self._timeout = timeout
        self._most = most
        self._crowded = crowded
        self._unauthenticated: dict[Connection, asyncio.TimerHandle] = {}  # oldest first
        self._hastened: dict[Connection, asyncio.TimerHandle] = {}

    def opened(self, connection: Connection) -> None:
        """A connection is about to open."""
        loop = asyncio.get_running_loop()
        self._unauthenticated[connection] = loop.call_later(self._timeout, self._end, connection)
        if len(self._unauthenticated) > self._most:
            self._hasten(next(iter(self._unauthenticated)))

    def authenticated(self, connection: Connection) -> None:
        """A request on it has proved the key: it may stay."""
        timer = self._unauthenticated.pop(connection, None) or self._hastened.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forgets all connections."""
        for connection in [*self._unauthenticated, *self._hastened]:
            self.authenticated(connection)

    def _hasten(self, connection: Connection) -> None:
        timer = self._unauthenticated.pop(connection)
        timer.cancel()
        opened_at = timer.when() - self._timeout
        self._hastened[connection] = asyncio.get_running_loop().call_at(
            opened_at + self._crowded, self._end, connection
        )

    def _end(self, connection: Connection) -> None:
        self.authenticated(connection)
        if connection.transport is not None:
            connection.transport.abort()
