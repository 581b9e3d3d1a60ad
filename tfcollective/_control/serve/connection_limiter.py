"""Limits connections that have not authenticated: ends those that do not prove the job key soon."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Protocol

from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.guarded_listener import CROWDED_S, LOOK_S, UnauthenticatedLimit


class Connection(Hashable, Protocol):
    """The part of a connection that the limiter uses; ``transport`` is None before it is open and after its end."""

    transport: asyncio.Transport | None


class UnauthenticatedConnectionLimiter:
    """Watches connections until they have proved the key, and ends those that
    :class:`UnauthenticatedLimit` names. Lives on the event loop's thread.

    Only time in which the loop serves connections counts: of a turn of the loop that takes long, because a thousand
    ranks come at once, no more than ``look``. A client that answers at once needs a few turns, so its connection stays
    however slow this process is.

    Args:
        timeout: how long (s) a connection may take to prove the key.
        most: how many may take that long at one time; of more, the oldest have ``crowded`` seconds.
        crowded: that time, from when the connection came.
        look: between two looks (s) for those whose time is over.
        clock: the time.
    """

    def __init__(
        self,
        timeout: float,
        most: int,
        crowded: float = CROWDED_S,
        look: float = LOOK_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._look_every = look
        self._clock = clock
        self._limits = timeout, most, crowded, look
        self._unauthenticated = UnauthenticatedLimit[Connection](*self._limits)
        self._looked = 0.0
        self._next_look: asyncio.TimerHandle | None = None

    def opened(self, connection: Connection) -> None:
        """A connection is about to open."""
        if self._next_look is None:
            self._looked = self._clock.monotonic()
            self._look_later()
        self._unauthenticated.opened(connection, self._looked)  # not now: time goes on once a turn

    def authenticated(self, connection: Connection) -> None:
        """Stops limiting a connection that has proved the key, or has ended."""
        self._unauthenticated.ended(connection)

    def close(self) -> None:
        """Forgets all connections."""
        self._unauthenticated = UnauthenticatedLimit[Connection](*self._limits)
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def look(self) -> None:
        """Ends the connections whose time is over."""
        now = self._looked = self._clock.monotonic()
        for connection in self._unauthenticated.overdue(now):
            if connection.transport is not None:
                connection.transport.abort()

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(self._look_every, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()
        if self._unauthenticated:
            self._look_later()
