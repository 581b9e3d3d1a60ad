"""The heartbeats of processes that are no tasks, such as agents: pure."""

from __future__ import annotations

from tfcollective._base.clock import LivenessTracker
from tfcollective._base.timing import TIMING
from tfcollective._control.messages import Presence


class Processes:
    """The time at which each process, by its name, was last heard. Not thread-safe."""

    def __init__(self) -> None:
        self._liveness = LivenessTracker[str](TIMING.longest_gap)
        self._never_heard: set[str] = set()

    def heard(self, name: str, now: float) -> None:
        """Notes a heartbeat of this process."""
        self._liveness.heard(name, now)
        self._never_heard.discard(name)

    def expect(self, name: str, now: float) -> None:
        """Counts the silence of this process from now on."""
        if name not in self._liveness:
            self._liveness.heard(name, now)
            self._never_heard.add(name)

    def forget(self, name: str) -> None:
        """Forgets a process that has ended."""
        self._liveness.forget(name)
        self._never_heard.discard(name)

    def is_silent(self, presence: Presence, now: float) -> bool:
        """True if a heartbeat of it was expected and none has come within the limit."""
        limit = presence.first if presence.name in self._never_heard else presence.limit
        return self._liveness.silence(presence.name, now) >= limit
