"""Signs of life: the thread that gives them."""

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
        beat: gives one; raises TfCollectiveError when it was not answered.
        lost: called once, with a cause, when the coordinator has been silent for :attr:`limit`; the thread then ends.
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
        """Between two signs (s); may be changed meanwhile."""
        self._clock = clock
        self._liveness = LivenessTracker[str](limit / 2)
        self._liveness.heard(_COORDINATOR, clock.monotonic())
        self._beating = threading.Lock()  # one at a time: an earlier heartbeat must not arrive after a later one
        self._lock = threading.Lock()  # over the tracker: others than the thread may beat
        self._stopped = threading.Event()
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

    def stop(self, timeout: float = TIMING.heartbeat) -> None:
        """Ends the thread; waits for a beat in flight up to ``timeout`` seconds."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def beat(self) -> bool:
        """Sends one heartbeat; returns False once the coordinator is lost."""
        try:
            with self._beating:
                self._beat()
        except TfCollectiveError as error:
            return self._missed(error)
        with self._lock:
            self._liveness.heard(_COORDINATOR, self._clock.monotonic())
        return True

    def _run(self) -> None:
        while self.beat() and not self._stopped.wait(self.interval):
            pass

    def _missed(self, error: TfCollectiveError) -> bool:
        with self._lock:
            silence = self._liveness.silence(_COORDINATOR, self._clock.monotonic())
        if silence < self.limit:
            _LOG.debug("heartbeat failed: %s", error)
            return True
        self._lost(f"the coordinator has not answered for {silence:.0f} s: {error}")
        return False
