"""Signals that ask a launcher to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["forward_signals"]


@contextmanager
def forward_signals(numbers: Sequence[int], act: Callable[[int], None]) -> Iterator[list[int]]:
    """While it is open, each of these signals calls ``act``; yields the list of those that have come.

    Only for the main thread, unless ``numbers`` is empty. The earlier handlers come back at the end.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        act(number)

    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
