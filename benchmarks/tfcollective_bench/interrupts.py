"""Clearing away is not interrupted: a second Ctrl-C would leave processes and namespaces behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["interrupts_deferred"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defers signals that ask this process to end while it is open; the first of them comes afterwards.

    What is done in it has to end by itself, soon. Outside the main thread no signal arrives, and nothing changes.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)

    try:
        earlier = {number: signal.signal(number, note) for number in _SIGNALS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])
