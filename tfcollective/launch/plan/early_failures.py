"""Which losses of ranks speak against their host: pure."""

from __future__ import annotations

from dataclasses import dataclass

from tfcollective.timing import TIMING

__all__ = ["EarlyFailures"]


@dataclass(frozen=True)
class _Seen:
    count: int
    at: float


class EarlyFailures:
    """How often in a row the processes that were started on a host have ended before they had trained for long.

    A rank that has trained for a while shows that its host can run ranks: that it is lost is no reason not to start
    another one there. One that never gets so far is such a reason, but several that were started before the first of
    them ended say it only once: they had the same cause, or the same try.

    Args:
        proven: how long (s) a rank has trained that shows that its host can run ranks.
    """

    def __init__(self, proven: float = TIMING.proven) -> None:
        self._proven = proven
        self._seen: dict[int | str, _Seen] = {}

    def ended(self, host: int | str, *, started: float, trained: float, now: float) -> int:
        """A process has failed on this host; how often in a row that has happened there too early.

        Args:
            started: when it was started.
            trained: how long (s) it was in the world; 0: it never was.
            now: the time, on the clock of `started`.
        """
        if trained >= self._proven:
            self._seen.pop(host, None)
            return 0
        seen = self._seen.get(host)
        if seen is None or started > seen.at:
            seen = self._seen[host] = _Seen(1 if seen is None else seen.count + 1, now)
        return seen.count
