"""Heartbeats: the thread that sends them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfcollective._base.clock import SYSTEM_CLOCK, Clock, LivenessTracker
from tfcollective._base.errors import TfCollectiveError
from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING

_LOG = get_logger(__name__)
_COORDINATOR = "coordinator"


class Heartbeat:
    """Sends the coordinator heartbeats on a thread of its own, and finds out when it does not answer any longer.

    Args:
        beat: sends one; raises TfCollectiveError when it was not answered.
        lost: called with a cause when the coordinator has been silent for :attr:`limit`, and again each time that the
            limit has passed once more: the thread keeps asking, because the coordinator may come back.
        limit: how long (s) it may be silent. One failure is never enough: half of the limit counts at most between two.
        interval: between two (s); see :attr:`interval`.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        lost: Callable[[str], None],
        limit: float = TIMING.coordinator_lost,
        interval: float = TIMING.heartbeat,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._beat = beat
        self._lost = lost
        self._limit = limit
        self.interval = interval
        """Between two heartbeats (s); may be changed meanwhile."""
        self._clock = clock
        self._liveness = LivenessTracker[str](limit / 2)
        self._liveness.heard(_COORDINATOR, clock.monotonic())
        self._due = threading.Event()
        self._wanted = False  # one more, before the thread ends
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tfcollective-heartbeat", daemon=True)

    @property
    def limit(self) -> float:
        """The time (s) that the coordinator may be silent; can be changed while it runs."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        self._liveness.longest_gap = limit / 2

    def start(self) -> None:
        """Starts beating."""
        self._thread.start()

    def hurry(self) -> None:
        """Lets the thread send the next heartbeat at once. Does not wait for it: the caller must not hang when the
        coordinator does."""
        self._wanted = True
        self._due.set()

    def stop(self, timeout: float = TIMING.heartbeat) -> None:
        """Ends the thread; waits up to ``timeout`` seconds for a heartbeat in flight and for one that is to hurry."""
        self._stopped = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def beat(self) -> None:
        """Sends one."""
        try:
            self._beat()
        except TfCollectiveError as error:
            self._missed(error)
        else:
            self._liveness.heard(_COORDINATOR, self._clock.monotonic())

    def _run(self) -> None:
        while True:
            self._wanted = False
            self.beat()
            if not self._stopped:
                self._due.wait(self.interval)
                self._due.clear()
            if self._stopped and not self._wanted:
                return

    def _missed(self, error: TfCollectiveError) -> None:
        now = self._clock.monotonic()
        silence = self._liveness.silence(_COORDINATOR, now)
        if silence < self.limit:
            _LOG.debug("heartbeat failed: %s", error)
            return
        self._liveness.heard(_COORDINATOR, now)
        self._lost(f"the coordinator has not answered for {silence:.0f} s: {error}")
