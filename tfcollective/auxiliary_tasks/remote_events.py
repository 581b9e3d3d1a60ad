"""Events that are written elsewhere, brought here for TensorBoard, which reads only files of this machine."""

from __future__ import annotations

from pathlib import Path

from tfcollective.clock import SYSTEM_CLOCK, Clock
from tfcollective.files import append_tail, find_files
from tfcollective.log import get_logger

__all__ = ["EventFollower"]

_LOG = get_logger(__name__)
_EVERY_S = 5.0


class EventFollower:
    """Keeps copies of the event files at and below a URL up to date.

    Args:
        url: where they are written, and only ever grow.
        directory: where the copies go.
        clock: for tests.
    """

    def __init__(self, url: str, directory: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url = url
        self._directory = directory
        self._clock = clock
        self._next = clock.monotonic()

    def look(self) -> None:
        """Brings what is new, not more often than every few seconds. What cannot be read now may be the next time."""
        if self._clock.monotonic() < self._next:
            return
        try:
            for name, facts in find_files(self._url).items():
                if ".tfevents." in name:
                    append_tail(f"{self._url}/{name}", facts.size, self._directory / name)
        except OSError as error:
            _LOG.warning("TensorBoard shows what it has: %s", error)
        self._next = self._clock.monotonic() + _EVERY_S
