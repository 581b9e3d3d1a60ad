"""The heartbeats of processes that are no tasks, such as agents: pure."""

from __future__ import annotations

from tfcollective._base.clock import LivenessTracker
from tfcollective._base.timing import TIMING
from tfcollective._control.messages import Presence


class Processes:
    """Of each by its name, when it was heard last. Not thread-safe."""

    def __init__(self) -> None:
        self._liveness = LivenessTracker[str](TIMING.longest_gap)
        self._never_heard: set[str] = set()

    def heard(self, name: str, now: float) -> None:
        """It has sent a heartbeat."""
        self._liveness.heard(name, now)
        self._never_heard.discard(name)

    def expect(self, name: str, now: float) -> None:
        """From now on, its silence counts."""
        if name not in self._liveness:
            self._liveness.heard(name, now)
            self._never_heard.add(name)

    def forget(self, name: str) -> None:
        """It has ended."""
        self._liveness.forget(name)
        self._never_heard.discard(name)

    def is_silent(self, presence: Presence, now: float) -> bool:
        """Whether it was expected, and has not been heard within the limit."""
        limit = presence.first if presence.name in self._never_heard else presence.limit
        return self._liveness.silence(presence.name, now) >= limit
