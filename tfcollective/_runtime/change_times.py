"""Measures the time from the moment when this rank knows its new world until its first step there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class ChangeTimes:
    """Measures one change of the world after another. Costs a look at one attribute in every other step.

    Args:
        publish: called for each change, with the world's generation and seconds by phase: ``connect`` (from the
            answer of the coordinator until the ranks are connected), ``sync`` (reset callbacks, and taking the state)
            and ``first_step`` (until the first commit). Called at the first commit; of a newcomer, at its sync too.
    """

    def __init__(
        self, publish: Callable[[Mapping[str, float]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._times: dict[str, float] | None = None
        self._at = 0.0

    def connected(self, generation: int, formed: float) -> None:
        """The ranks of a new world are connected; this one has known of it since ``formed``, on the clock."""
        self._at = self._clock()
        self._times = {"generation": generation, "connect": self._at - formed}

    def synced(self, *, tell: bool = False) -> None:
        """Records that all ranks have taken the state; ``tell``: for this rank it is the first time, which is reported
        to the coordinator at once.
        """
        self._note("sync")
        if tell and self._times is not None:
            self._publish(dict(self._times))

    def stepped(self) -> None:
        """A commit."""
        if self._times is None:
            return
        self._note("first_step")
        times, self._times = self._times, None
        self._publish(times)

    def _note(self, phase: str) -> None:
        if self._times is not None:
            now = self._clock()
            self._times[phase], self._at = now - self._at, now
