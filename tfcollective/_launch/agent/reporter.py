"""Tells the coordinator what the agent sees, in a thread of its own, so that a slow network holds up nothing."""

from __future__ import annotations

import logging
import queue
import threading

from tfcollective._base.errors import TfCollectiveError
from tfcollective._base.log import get_logger
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Nothing, Request

_LOG = get_logger(__name__)


class Reporter:
    """Sends reports in order. A report that cannot be delivered for a while is dropped; the first such is logged."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._channel = Channel(client)
        self._reports: queue.SimpleQueue[Request[Nothing] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tfc-reporter", daemon=True)

    def start(self) -> None:
        """Starts the thread; reports made before are sent first."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Sends what is left, for at most ``timeout`` seconds."""
        self._reports.put(None)
        self._thread.join(timeout)

    def report(self, request: Request[Nothing]) -> None:
        """Queues this report behind the earlier ones."""
        self._reports.put(request)

    def _run(self) -> None:
        level = logging.WARNING
        while (request := self._reports.get()) is not None:
            try:
                self._channel.ask(request)
            except TfCollectiveError as error:
                _LOG.log(level, "agent: %s", error)
                level = logging.DEBUG
