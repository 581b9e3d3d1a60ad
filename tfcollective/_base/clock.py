"""Time as a value: clocks that can be replaced in tests, absolute deadlines, the judge of silence, and calls that have
no deadline of their own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

_Result = TypeVar("_Result")
_Name = TypeVar("_Name", bound=Hashable)


class Clock(Protocol):
    """The source of time. All values are seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary fixed moment; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""

    def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def wall(self) -> float:
        """See :class:`Clock`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True)
class Deadline:
    """A moment on a monotonic clock after which a wait has to end."""

    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The moment ``seconds`` from now."""
        return cls(clock.monotonic() + seconds)

    @classmethod
    def never(cls) -> Deadline:
        """A moment that does not come."""
        return cls(math.inf)

    def remaining(self, clock: Clock = SYSTEM_CLOCK) -> float:
        """Seconds left, never below zero; infinite for :meth:`never`."""
        return max(0.0, self.at - clock.monotonic())

    def expired(self, clock: Clock = SYSTEM_CLOCK) -> bool:
        """True if the moment has come."""
        return clock.monotonic() >= self.at


class LivenessTracker(Generic[_Name]):
    """Judges which processes have been silent for how long. Pure: times are those of one monotonic clock, in seconds.

    Only time in which this process could have heard something counts as silence. Of the time between two calls, which
    come often, more than ``longest_gap`` does not count: this process was stopped meanwhile, and what was said then
    still waits to be heard.
    """

    def __init__(self, longest_gap: float) -> None:
        self.longest_gap = longest_gap
        self._now: float | None = None
        self._listened = 0.0
        self._heard: dict[_Name, float] = {}  # at which second of listening; the longest silence stands first

    def __len__(self) -> int:
        return len(self._heard)

    def __contains__(self, name: _Name) -> bool:
        return name in self._heard

    def heard(self, name: _Name, now: float) -> None:
        """Records a heartbeat of ``name``; from the first one on, more are expected."""
        self._advance(now)
        self._heard.pop(name, None)
        self._heard[name] = self._listened

    def forget(self, name: _Name) -> None:
        """Expects no further heartbeats of ``name``."""
        self._heard.pop(name, None)

    def silence(self, name: _Name, now: float) -> float:
        """Returns how long ``name`` has sent no heartbeat; KeyError when none are expected of it."""
        self._advance(now)
        return self._listened - self._heard[name]

    def silent(self, limit: float, now: float) -> tuple[_Name, ...]:
        """Returns the names without a heartbeat for ``limit`` seconds or longer, the longest silence first."""
        self._advance(now)
        return tuple(takewhile(lambda name: self._listened - self._heard[name] >= limit, self._heard))

    def _advance(self, now: float) -> None:
        if self._now is not None:
            self._listened += min(now - self._now, self.longest_gap)
        self._now = now


def on_thread(call: Callable[[], _Result], name: str) -> Future[_Result]:
    """Runs a call that has no deadline of its own on a daemon thread named `name`.

    The caller waits for the future as long as its own deadline allows; a call that hangs is left behind.
    """
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised where the future is waited for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def poll(look: Callable[[], _Result | None], seconds: float, pause: float) -> _Result | None:
    """Calls ``look`` until it returns something other than None, and returns that; None after so many seconds.

    Meant for sources without notifications: files of any file system, platforms without a call that waits. ``pause`` is
        the time between two calls; the last call is at the end of the time.
    """
    deadline = Deadline.after(seconds)
    while True:
        last = deadline.expired()
        found = look()
        if found is not None or last:
            return found
        time.sleep(min(pause, deadline.remaining()))


@contextmanager
def every(seconds: float, call: Callable[[], object], name: str) -> Iterator[None]:
    """Makes ``call`` every so many seconds on a daemon thread named ``name`` while the context is open.

    A call that hangs is left behind at the end. ``call`` handles its own errors.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(seconds)
