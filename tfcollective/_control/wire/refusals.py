"""Logs what unauthenticated peers bring about, but not faster than a person reads: they must not fill the disk."""

from __future__ import annotations

import logging
import math

from tfcollective._base.clock import Clock

_INTERVAL_S = 1.0


class RefusalLog:
    """At most one line a second; what comes in between is counted. Not thread-safe."""

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

    def as_logger(self) -> logging.Logger:
        """For a library that logs a traceback for every malformed request: each becomes a note."""
        logger = logging.Logger("tfcollective._control.http", logging.WARNING)
        logger.addHandler(_Notes(self))
        return logger


class _Notes(logging.Handler):
    def __init__(self, refusals: RefusalLog) -> None:
        super().__init__()
        self._refusals = refusals

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        error = record.exc_info[1] if record.exc_info else None
        first_line = next(iter(str(error).splitlines()), "") if error is not None else ""
        what = "" if error is None else f": {type(error).__name__}: {first_line}"
        self._refusals.note(f"{record.getMessage()}{what}")
