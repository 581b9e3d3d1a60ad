"""Waiting for changes by topic: a change wakes those that wait for its topic, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

_AT_ONCE = 64  # the answers to thousands of waiting ranks take seconds: other requests are served between


class Wakeups:
    """The waits for topics, on the thread of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}

    async def wait(self, topics: Sequence[Hashable], timeout: float | None) -> None:
        """Returns when one of the topics has changed or the time is over."""
        loop = asyncio.get_running_loop()
        changed = loop.create_future()
        for topic in topics:
            self._waiting.setdefault(topic, set()).add(changed)
        timer = None if timeout is None else loop.call_later(timeout, _wake, changed)
        try:
            await changed
        finally:
            if timer is not None:
                timer.cancel()
            for topic in topics:
                self._waiting[topic].discard(changed)
                if not self._waiting[topic]:
                    del self._waiting[topic]

    def wake(self, *topics: Hashable) -> None:
        """Wakes all that wait for these topics, a few of them in each turn of the event loop."""
        for topic in topics:
            _wake_in_turns(list(self._waiting.get(topic, ())))

    def wake_all(self) -> None:
        """Wakes all that wait, at once: there may be no further turn of the event loop."""
        for waiting in self._waiting.values():
            for changed in waiting:
                _wake(changed)


def _wake_in_turns(waiting: list[asyncio.Future[None]]) -> None:
    for changed in waiting[:_AT_ONCE]:
        _wake(changed)
    if len(waiting) > _AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake_in_turns, waiting[_AT_ONCE:])


def _wake(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)
