"""Limits connections that have not authenticated: ends those that do not prove the job key soon."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import islice
from typing import Protocol

from tfcollective.clock import SYSTEM_CLOCK, Clock
from tfcollective.control.liveness import LivenessTracker

_CROWDED_S = 0.5
_LOOK_S = 0.25


class Connection(Hashable, Protocol):
    """What the limiter needs of a connection; ``transport`` is None before it is open and after its end."""

    transport: asyncio.Transport | None


class UnauthenticatedConnectionLimiter:
    """Watches connections from their beginning to their first proved request. Lives on the event loop's thread.

    A connection that sends nothing, or a header byte by byte, never becomes a request that could be refused: without
    this it would hold a descriptor for as long as it likes. A connection is not ended because others come before it had
    time for a request: it may be that of a rank.

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
        crowded: float = _CROWDED_S,
        look: float = _LOOK_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._timeout = timeout
        self._most = most
        self._crowded = crowded
        self._look_every = look
        self._clock = clock
        self._unauthenticated = LivenessTracker[Connection](look)
        self._looked = 0.0
        self._next_look: asyncio.TimerHandle | None = None

    def opened(self, connection: Connection) -> None:
        """A connection is about to open."""
        if self._next_look is None:
            self._looked = self._clock.monotonic()
            self._look_later()
        self._unauthenticated.heard(connection, self._looked)  # not now: time goes on once a turn

    def authenticated(self, connection: Connection) -> None:
        """A request on it has proved the key: it may stay."""
        self._unauthenticated.forget(connection)

    def close(self) -> None:
        """Forgets all connections."""
        self._unauthenticated = LivenessTracker[Connection](self._look_every)
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def look(self) -> None:
        """Ends the connections whose time is over."""
        now = self._looked = self._clock.monotonic()
        too_many = max(0, len(self._unauthenticated) - self._most)
        # One look longer, because a connection counts from the look before it.
        crowding = islice(self._unauthenticated.silent(self._crowded + self._look_every, now), too_many)
        for connection in {*crowding, *self._unauthenticated.silent(self._timeout + self._look_every, now)}:
            self._unauthenticated.forget(connection)
            if connection.transport is not None:
                connection.transport.abort()

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(self._look_every, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()
        if self._unauthenticated:
            self._look_later()
