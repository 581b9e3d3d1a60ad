"""Tells the coordinator what the agent sees, in a thread of its own, so that a slow network holds up nothing."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from tfcollective._base.errors import TfCollectiveError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.log import get_logger
from tfcollective._base.tasks import TaskKey
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient

_LOG = get_logger(__name__)


class Reporter:
    """Sends reports in order. A report that cannot be delivered for a while is dropped; the first such is logged."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._channel = Channel(client)
        self._reports: queue.SimpleQueue[Callable[[CoordinatorClient], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tfc-reporter", daemon=True)

    def start(self) -> None:
        """Starts the thread; reports made before are sent first."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Sends what is left, for at most ``timeout`` seconds."""
        self._reports.put(None)
        self._thread.join(timeout)

    def started(self, task: TaskKey, node: str, pid: int, host: str) -> None:
        """The task's process runs."""
        self._reports.put(lambda client: client.started(task, node=node, pid=pid, host=host))

    def exited(self, record: ExitRecord) -> None:
        """The task's process has ended."""
        self._reports.put(lambda client: client.exited(record))

    def node_leaves(self, tasks: Sequence[TaskKey], why: str, change: int = 0) -> None:
        """The node of these tasks is to be taken away."""
        self._reports.put(lambda client: client.node_leaves(tasks, why, change))

    def _run(self) -> None:
        level = logging.WARNING
        while (send := self._reports.get()) is not None:
            try:
                self._channel.call(send)
            except TfCollectiveError as error:
                _LOG.log(level, "agent: %s", error)
                level = logging.DEBUG
