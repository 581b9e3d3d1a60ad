"""When an agent stops its processes, and how hard: pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

__all__ = ["Limits", "Stop", "StopCause", "stop_schedule"]


class StopCause(Enum):
    """Why the processes have to end."""

    FAILURE = "failure"  # one of them failed
    REQUEST = "request"  # the launcher, or a signal to the agent, asked for it
    ABANDONED = "abandoned"  # the launcher is gone


@dataclass(frozen=True)
class Limits:
    """How long (s) processes may take to end.

    Attributes:
        grace: after a failure, before anything is sent: so that the others fail by themselves and tell why.
        terminate: between SIGTERM and SIGKILL.
        request: between a requested signal and SIGTERM.
    """

    grace: float = 1.5
    terminate: float = 1.2
    request: float = 1.5


@dataclass(frozen=True)
class Stop:
    """A decision to stop, made at ``at`` on the monotonic clock; ``signal`` is what a request asked to send."""

    cause: StopCause
    at: float
    signal: int = signal.SIGTERM


def stop_schedule(stop: Stop, limits: Limits) -> tuple[tuple[float, int], ...]:
    """The signals to send to what is still running, and when; the last one is SIGKILL."""
    start = stop.at
    signals: list[tuple[float, int]] = []
    if stop.cause is StopCause.FAILURE:
        start += limits.grace
    elif stop.cause is StopCause.REQUEST and stop.signal != signal.SIGTERM:
        signals.append((start, stop.signal))
        start += limits.request
    if stop.signal != signal.SIGKILL:
        signals.append((start, signal.SIGTERM))
        signals.append((start + limits.terminate, signal.SIGKILL))
    return tuple(signals)
