"""Listeners that a peer without the job key can neither end nor fill up.

A connection that says nothing never becomes a request that could be refused: it would hold a descriptor for as long as
it likes, and once there is none left, no other connection can be accepted.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Generator, Hashable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tfcollective._base.clock import SYSTEM_CLOCK, Clock, LivenessTracker

LOOK_S = 0.25
BACKLOG = 128
CROWDED_S = 0.5
_PROVE_S = 10.0
_MOST = 32
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OF_THE_CONNECTION = (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO, errno.EPERM)

_Connection = TypeVar("_Connection", bound=Hashable)


class UnauthenticatedLimit(Generic[_Connection]):
    """Decides which connections to end because they have not proved the job key in time. Pure: takes the time.

    A connection is not ended because others come before it had time for a request: it may be that of a rank. Of the
    time between two calls no more than ``look`` counts, so that one that answers at once stays however slow this
    process is.

    Args:
        timeout: how long (s) a connection may take to prove the key.
        most: how many may take that long at one time; of more, the oldest have ``crowded`` seconds.
        crowded: that time, from when the connection came.
        look: the time between two calls of :meth:`overdue`.
    """

    def __init__(self, timeout: float, most: int, crowded: float = CROWDED_S, look: float = LOOK_S) -> None:
        self._timeout = timeout
        self._most = most
        self._crowded = crowded
        self._look = look
        self._waiting = LivenessTracker[_Connection](look)

    def __len__(self) -> int:
        return len(self._waiting)

    def opened(self, connection: _Connection, now: float) -> None:
        """Records a new connection, opened at this time."""
        self._waiting.heard(connection, now)

    def ended(self, connection: _Connection) -> None:
        """Stops watching a connection that has proved the key or has closed."""
        self._waiting.forget(connection)

    def overdue(self, now: float) -> set[_Connection]:
        """Returns the connections to end at this time, and stops watching them."""
        too_many = max(0, len(self._waiting) - self._most)
        # One look longer, because a connection counts from the look before it.
        crowding = islice(self._waiting.silent(self._crowded + self._look, now), too_many)
        found = {*crowding, *self._waiting.silent(self._timeout + self._look, now)}
        for connection in found:
            self._waiting.forget(connection)
        return found

    def oldest(self, now: float) -> _Connection | None:
        """Returns the connection that has waited longest; None if there is none."""
        return next(iter(self._waiting.silent(0.0, now)), None)


class Guest(Hashable, Protocol):
    """A connection that has been accepted, and has yet to say what is expected of it."""

    @property
    def connection(self) -> socket.socket:
        """The guest's socket, in non-blocking mode."""

    def has_answered(self) -> bool:
        """Called when there is something to read: True if there is no more to wait for."""


_Guest = TypeVar("_Guest", bound=Guest)


class GuardedListener(Generic[_Guest]):
    """Accepts connections, and ends those that answer nothing by an :class:`UnauthenticatedLimit`. Where there are no
    descriptors left, the one that has waited longest makes room.

    Args:
        listener: what listens. Who ends the iteration from another thread shuts it down.
        greet: makes a guest of a connection.
        timeout: see :class:`UnauthenticatedLimit`, as ``most``.
        most: how many may be silent for that long.
        clock: the time.
    """

    def __init__(
        self,
        listener: socket.socket,
        greet: Callable[[socket.socket], _Guest],
        *,
        timeout: float = _PROVE_S,
        most: int = _MOST,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)  # a connection may be gone before it is accepted
        self._greet = greet
        self._clock = clock
        self._limit = UnauthenticatedLimit[_Guest](timeout, most)
        self._guests: set[_Guest] = set()
        self._selector = selectors.PollSelector()

    def answering(self) -> Generator[_Guest, None, None]:
        """Yields each guest that has answered; its connection then belongs to the caller. At the end of the iteration
        all others are closed. Raises OSError when the listener has been shut down.
        """
        with self._selector:
            try:
                self._selector.register(self._listener, selectors.EVENT_READ)
                while True:
                    for key, _ in self._selector.select(LOOK_S):
                        if key.data is None:
                            self._accept()
                        elif key.data in self._guests and key.data.has_answered():
                            yield self._let_go(key.data)
                    for guest in self._limit.overdue(self._clock.monotonic()):
                        self._let_go(guest).connection.close()
            finally:
                for guest in self._guests:
                    guest.connection.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _SHORTAGE:
                self._make_room()
            elif error.errno not in _OF_THE_CONNECTION:
                raise
            return
        guest = self._greet(connection)
        self._guests.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._limit.opened(guest, self._clock.monotonic())

    def _make_room(self) -> None:
        oldest = self._limit.oldest(self._clock.monotonic())
        if oldest is not None:
            self._let_go(oldest).connection.close()
        else:  # others have all descriptors. The listener stays ready meanwhile, so that waiting for it would not wait
            self._clock.sleep(LOOK_S)

    def _let_go(self, guest: _Guest) -> _Guest:
        self._selector.unregister(guest.connection)
        self._limit.ended(guest)
        self._guests.discard(guest)
        return guest
