"""Connections that have not authenticated are limited, and do not affect those that have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

from tfcollective._control.serve.connection_limiter import UnauthenticatedConnectionLimiter
from tfcollective._testing.clock import ManualClock


@dataclass(eq=False)
class FakeTransport:
    """Notes its end."""

    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        """As a transport does."""
        self.aborted.set()


class FakeConnection:
    """A connection that is open."""

    def __init__(self) -> None:
        self.fake = FakeTransport()
        self.transport: asyncio.Transport | None = cast(asyncio.Transport, self.fake)

    @property
    def ended(self) -> bool:
        """Whether the limiter has ended it."""
        return self.fake.aborted.is_set()

    async def end(self) -> None:
        """Until it has been ended."""
        await asyncio.wait_for(self.fake.aborted.wait(), 30)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Runs the test on an event loop."""

    async def main() -> None:
        await test()

    asyncio.run(main())


def test_a_connection_that_proves_nothing_is_ended() -> None:
    async def test() -> None:
        limiter = UnauthenticatedConnectionLimiter(timeout=0.01, most=10)
        silent, honest = FakeConnection(), FakeConnection()
        limiter.opened(silent)
        limiter.opened(honest)
        limiter.authenticated(honest)
        await silent.end()
        assert not honest.ended

    run(test)


def test_many_newcomers_spare_an_earlier_connection() -> None:
    async def test() -> None:
        limiter = UnauthenticatedConnectionLimiter(timeout=600, most=4, crowded=0.2)
        honest = FakeConnection()
        limiter.opened(honest)
        crowd = [FakeConnection() for _ in range(2000)]
        for connection in crowd:
            limiter.opened(connection)
        assert not honest.ended, "it has had no time to ask for anything"
        limiter.authenticated(honest)
        for connection in crowd[:-4]:
            await connection.end()
        assert not honest.ended
        assert not any(connection.ended for connection in crowd[-4:]), "so many may take their time"
        limiter.close()

    run(test)


def test_a_slow_coordinator_ends_no_connections() -> None:
    async def test() -> None:
        clock = ManualClock()
        limiter = UnauthenticatedConnectionLimiter(timeout=10.0, most=100, look=0.25, clock=clock)
        connection = FakeConnection()
        limiter.opened(connection)
        for _ in range(40):  # turns of the loop, in which the coordinator greets thousands
            clock.advance(5.0)
            limiter.opened(FakeConnection())
            limiter.look()
        assert not connection.ended
        clock.advance(0.25)
        limiter.look()
        assert connection.ended
        limiter.close()

    run(test)


def test_a_proved_connection_is_forgotten_after_closing() -> None:
    async def test() -> None:
        limiter = UnauthenticatedConnectionLimiter(timeout=0.01, most=1, crowded=0.01)
        connections = [FakeConnection() for _ in range(3)]
        for connection in connections:
            limiter.opened(connection)
        limiter.close()
        await asyncio.sleep(0.05)  # in which nothing happens
        assert not any(connection.ended for connection in connections)

    run(test)
