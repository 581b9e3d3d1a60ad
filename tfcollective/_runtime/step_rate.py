"""Measures the speed of training and reports it to the coordinator from time to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfcollective._base.clock import SYSTEM_CLOCK, Clock

_INTERVAL_S = 5.0


class StepRate:
    """Publishes steps a second over the last few seconds, and the step that training is at.

    Args:
        publish: takes ``step`` and ``steps_per_second``, by name.
        count: how many steps are done; asked only when there is something to publish.
        total: how many there are to do, published as ``steps``; None where that is not known.
        more: what else to publish, by name; asked only when there is something to publish.
        interval: how many seconds lie between two publications, at least.
    """

    def __init__(
        self,
        publish: Callable[[Mapping[str, object]], object],
        count: Callable[[], int],
        clock: Clock = SYSTEM_CLOCK,
        interval: float = _INTERVAL_S,
        total: Callable[[], int | None] = lambda: None,
        more: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._publish = publish
        self._count = count
        self._clock = clock
        self._interval = interval
        self._total = total
        self._more = more
        self._since: tuple[float, int] | None = None

    def step(self, *, last: bool = False) -> None:
        """Counts a step; with ``last`` training has ended, and the rate so far is published."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = (now, self._count())  # the first step is slow: graphs are made
            return
        began, before = self._since
        if now - began < self._interval and not (last and now > began):
            return
        done = self._count()
        if done > before:
            total = self._total()
            known = {} if total is None else {"steps": total}
            rate = (done - before) / (now - began)
            self._publish({"step": done, "steps_per_second": rate, **known, **self._more()})
            self._since = (now, done)
