"""A clock that only a test advances."""

from tfcollective._base.clock import Clock


class ManualClock(Clock):
    """A clock that stands still except in :meth:`advance` and :meth:`sleep`."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def monotonic(self) -> float:
        """Returns the time that the test has reached."""
        return self._now

    def wall(self) -> float:
        """Returns the same as :meth:`monotonic`."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Moves the time forward instead of waiting."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Moves the time forward by ``seconds`` (>= 0)."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds
