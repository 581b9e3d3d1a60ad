"""A clock that only a test advances."""


class ManualClock:
    """A :class:`tfcollective._base.clock.Clock` that only :meth:`advance` and :meth:`sleep` move."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def monotonic(self) -> float:
        """See :class:`tfcollective._base.clock.Clock`."""
        return self._now

    def wall(self) -> float:
        """See :class:`tfcollective._base.clock.Clock`."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """See :class:`tfcollective._base.clock.Clock`."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Moves the time forward by ``seconds`` (>= 0)."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds
