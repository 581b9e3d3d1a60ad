"""Logs what unauthenticated peers bring about, but not faster than a person reads: they must not fill the disk."""

from __future__ import annotations

import logging
import math

from tfcollective._base.clock import Clock

_INTERVAL_S = 1.0


class RefusalLog:
    """Logs at most one line a second and counts the refusals in between. Not thread-safe."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._next = -math.inf
        self._silent = 0

    def note(self, text: str) -> None:
        """Logs ``text``, or counts it when the last line was just now."""
        now = self._clock.monotonic()
        if now < self._next:
            self._silent += 1
            return
        more = f" ({self._silent} more before)" if self._silent else ""
        self._log.warning("coordinator: %s%s", text, more)
        self._next, self._silent = now + _INTERVAL_S, 0
