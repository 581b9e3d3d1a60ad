"""Tells the coordinator every two seconds that this rank lives, and notices when the coordinator does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from tfcollective.clock import SYSTEM_CLOCK, Clock
from tfcollective.errors import TfCollectiveError
from tfcollective.log import get_logger
from tfcollective.tasks import TaskKey

__all__ = ["Heartbeat", "HeartbeatSink", "LossDetector"]

INTERVAL_S = 2.0
LOST_AFTER_S = 30.0
_LOG = get_logger(__name__)


class HeartbeatSink(Protocol):
    """What the heartbeat needs of a coordinator client."""

    def heartbeat(self, task: TaskKey, activity: str, info: Mapping[str, object]) -> None:
        """Tells the coordinator; raises TfCollectiveError when it cannot."""


class LossDetector:
    """Decides when a coordinator that does not answer is lost. Pure: time comes in."""

    def __init__(self, lost_after: float = LOST_AFTER_S) -> None:
        self._lost_after = lost_after
        self._failing_since: float | None = None

    def answered(self) -> None:
        """It answered."""
        self._failing_since = None

    def failed(self, now: float) -> float | None:
        """It did not answer at `now`. Returns for how long it has not, once that is too long; else None."""
        if self._failing_since is None:
            self._failing_since = now
        silent = now - self._failing_since
        return silent if silent >= self._lost_after else None


class Heartbeat:
    """The thread.

    Args:
        client: where beats go.
        task: who beats.
        report: gives (state, info) at each beat.
        lost: called once, with a cause, when the coordinator has not answered for long; the thread then ends.
    """

    def __init__(
        self,
        client: HeartbeatSink,
        task: TaskKey,
        report: Callable[[], tuple[str, Mapping[str, object]]],
        lost: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
        interval: float = INTERVAL_S,
    ) -> None:
        self._client = client
        self._task = task
        self._report = report
        self._lost = lost
        self._clock = clock
        self._interval = interval
        self._detector = LossDetector()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfcollective-heartbeat", daemon=True)

    def start(self) -> None:
        """Starts beating."""
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Ends the thread; waits for a beat in flight up to `timeout` seconds."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            if not self.beat():
                return

    def beat(self) -> bool:
        """One beat; false once the coordinator is lost."""
        try:
            activity, info = self._report()
            self._client.heartbeat(self._task, activity, info)
        except TfCollectiveError as error:
            return self._missed(error)
        self._detector.answered()
        return True

    def _missed(self, error: TfCollectiveError) -> bool:
        silent = self._detector.failed(self._clock.monotonic())
        if silent is None:
            _LOG.debug("heartbeat failed: %s", error)
            return True
        self._lost(f"the coordinator has not answered for {silent:.0f} s: {error}")
        return False
