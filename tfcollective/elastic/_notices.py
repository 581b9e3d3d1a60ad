"""News that the world will change, in the form that programs for Horovod know: messages to the states."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tfcollective import _runtime as runtime


class HostUpdateResult:
    """The change of the hosts, with Horovod's numbers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """The receiver of notices: a state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """See :meth:`tfcollective.elastic.State.on_hosts_updated`."""


class WorkerNotificationManager:
    """Tells listeners that the world will change, as soon as rank 0 hears of it: on a thread of its own.

    :func:`tfcollective.elastic.run` has its state listen while it runs. What the coordinator says of a change does not
    tell ranks that come from ranks that go: its messages are :attr:`HostUpdateResult.mixed`.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._generations: dict[float, int] = {}  # of the coordinator's messages, by their times

    def init(self, *unused: Any, **unused_too: Any) -> None:
        """Horovod's; not needed."""

    def register_listener(self, listener: Listener) -> None:
        """Adds a listener."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Removes a listener."""
        self._listeners.remove(listener)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Sends notices to this listener while the context is open."""
        self.register_listener(listener)
        try:
            yield
        finally:
            self.remove_listener(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tells all listeners. A program may call it: the world then changes at the next commit."""
        for listener in tuple(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)

    def hear(self, generation: int) -> None:
        """The coordinator wants the members to form the world of this generation."""
        at = time.time()
        self._generations[at] = generation
        self.handle_hosts_updated(at, HostUpdateResult.mixed)

    def is_over(self, timestamp: float) -> bool:
        """True if the message of this time was about a change that has been made meanwhile."""
        return self._generations.get(timestamp, runtime.generation() + 1) <= runtime.generation()


notification_manager = WorkerNotificationManager()
runtime.on_pending(notification_manager.hear)
