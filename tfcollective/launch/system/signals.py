"""Signals that ask a launcher to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["forward_signals"]


@contextmanager
def forward_signals(numbers: Sequence[int], act: Callable[[int], None]) -> Iterator[list[int]]:
    """While it is open, each of these signals calls ``act``; yields the list of those that have come.

    Ctrl-Z at the terminal is refused with a line that says so: a launcher that does not run answers no rank, and the
    ranks would give up. Only for the main thread, unless ``numbers`` is empty. The earlier handlers come back at the
    end.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        act(number)

    earlier = {number: signal.signal(number, handle) for number in numbers}
    if numbers:
        earlier[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, _refuse)
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _refuse(number: int, frame: FrameType | None) -> None:
    del number, frame
    # One bare write: a handler may run in the middle of another one.
    os.write(2, b"tfcollective: a running job cannot be suspended; Ctrl-C ends it\n")
