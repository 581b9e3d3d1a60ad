"""Decides when an agent stops its processes, and with which signals: pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from enum import Enum

from tfcollective._base.timing import Timing


class StopCause(str, Enum):
    """The reason why the processes have to end."""

    FAILURE = "failure"  # one of them failed
    ELSEWHERE = "elsewhere"  # a process of another agent failed, or its host was lost
    REQUEST = "request"  # a person or a platform asked for it, with a signal to the launcher or to the agent
    ABANDONED = "abandoned"  # the launcher is gone, or continues without this node
    PREEMPTION = "preemption"  # the node is preempted and the job continues: they have been asked to leave


@dataclass(frozen=True)
class Stop:
    """A decision to stop, made at ``at`` on the monotonic clock; ``signal`` is the first one to send."""

    cause: StopCause
    at: float
    signal: int = signal.SIGTERM


def stop_schedule(stop: Stop, limits: Timing) -> tuple[tuple[float, int], ...]:
    """The signals to send to what is still running, and when; the last one is SIGKILL.

    ``limits`` has how long (s) processes may take to end: ``settle``, ``terminate``, ``interrupt`` and ``grace``.
    """
    start = stop.at
    if stop.signal == signal.SIGKILL:
        return ((start, signal.SIGKILL),)
    signals: list[tuple[float, int]] = []
    if stop.cause in (StopCause.FAILURE, StopCause.ELSEWHERE):
        start += limits.settle
    elif stop.cause is StopCause.PREEMPTION:
        start += max(0.0, limits.grace - limits.terminate)  # no more than the grace until the last signal
    elif stop.cause is StopCause.REQUEST and stop.signal != signal.SIGTERM:
        signals.append((start, stop.signal))
        start += limits.interrupt
    signals.append((start, signal.SIGTERM))
    rest = limits.grace if stop.cause is StopCause.REQUEST else limits.terminate
    signals.append((start + rest, signal.SIGKILL))
    return tuple(signals)


def next_stop(earlier: Stop | None, new: Stop) -> Stop | None:
    """The decision that counts once ``new`` has come after ``earlier``; None when the earlier one stands.

    - Ctrl-C after an earlier request kills at once: only a person at a terminal sends SIGINT again. Platforms repeat
      SIGTERM, and send SIGHUP with it, without meaning more by it.
    - A failure, here or elsewhere, changes nothing once the processes are being stopped: they may fail because of it.
    - What has been asked to leave may do so until its time is over, unless the job ends before that. Where processes
      are being stopped, there is nothing more to ask.
    - The end of the launcher counts always: no process is left that could wait for a checkpoint or repeat an order.
    """
    if earlier is None:
        return new
    if new.cause is StopCause.PREEMPTION:
        return None
    if earlier.cause is StopCause.PREEMPTION:
        return None if new.cause is StopCause.FAILURE else new
    if new.cause is StopCause.ABANDONED:
        return None if earlier.cause is StopCause.ABANDONED else new
    if new.cause is not StopCause.REQUEST:
        return None
    if earlier.cause is not StopCause.REQUEST:
        return new if new.signal == signal.SIGKILL else None
    return replace(new, signal=signal.SIGKILL) if new.signal in (signal.SIGINT, signal.SIGKILL) else None
