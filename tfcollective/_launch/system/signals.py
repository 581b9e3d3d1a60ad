"""Signals that ask a launcher to stop, and the same for one that runs on another thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import FrameType

from tfcollective._base.processes import PASSED_ON, not_ignored


class DeferredCall:
    """Passes numbers to a function, from any thread and from signal handlers; keeps those that come before :meth:`open`
    names the function."""

    def __init__(self) -> None:
        self._act: Callable[[int], None] | None = None
        self._lock = threading.RLock()  # a signal handler may run in the middle of the thread that holds it
        self._kept: list[int] = []

    def __call__(self, number: int) -> None:
        """Passes it on, or keeps it."""
        with self._lock:
            if self._act is None:
                self._kept.append(number)
                return
        self._act(number)

    def open(self, act: Callable[[int], None]) -> None:
        """Passes on to ``act`` what was kept, and from now on at once."""
        with self._lock:
            self._act = act
            kept = tuple(self._kept)
        for number in kept:
            act(number)


class StopSwitch:
    """Stops what runs on another thread, as a signal would that thread's launcher: Python handles signals on the main
    thread alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: list[Callable[[int], None]] = []
        self._number: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Reports :meth:`stop` to all :func:`forward_signals` of this thread while the context is open."""
        token = _SWITCH.set(self)
        try:
            yield
        finally:
            _SWITCH.reset(token)

    def stop(self, number: int) -> None:
        """Stops, from any thread; returns when the action is done."""
        with self._lock:
            self._number = number
            handlers = tuple(self._handlers)
        for handle in handlers:
            handle(number)

    @contextmanager
    def heard(self, handle: Callable[[int], None]) -> Iterator[None]:
        """Calls ``handle`` with every signal while the context is open, and with one that has come already."""
        with self._lock:
            self._handlers.append(handle)
            earlier = self._number
        try:
            if earlier is not None:
                handle(earlier)
            yield
        finally:
            with self._lock:
                self._handlers.remove(handle)


_SWITCH: ContextVar[StopSwitch | None] = ContextVar("tfcollective stop switch", default=None)


@contextmanager
def forward_signals(
    numbers: Sequence[int], act: Callable[[int], None], show_stacks: Callable[[], None] | None = None
) -> Iterator[list[int]]:
    """Calls ``act`` for each of these signals while the context is open, and for a :class:`StopSwitch` that this thread
    holds; yields the list of those that have come and ask for the end: all but those of :data:`PASSED_ON`. A signal
    that this process ignores stays ignored. SIGQUIT calls ``show_stacks`` if it is given, also where it is ignored, as
    in what a script starts with &: it ends nothing.

    Ctrl-Z at the terminal is refused with a line that says so: a launcher that does not run answers no rank, and the
    ranks would give up. Only for the main thread, unless ``numbers`` is empty. The earlier handlers come back at the
    end.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None = None) -> None:
        del frame
        if number not in PASSED_ON:
            received.append(number)
        act(number)

    earlier = {number: signal.signal(number, handle) for number in not_ignored(numbers)}
    for number in not_ignored((signal.SIGTSTP,)) if numbers else ():
        earlier[number] = signal.signal(number, _refuse)
    if show_stacks is not None and numbers:
        earlier[signal.SIGQUIT] = signal.signal(signal.SIGQUIT, partial(_call, show_stacks))
    switch = _SWITCH.get()
    try:
        with nullcontext() if switch is None else switch.heard(handle):
            yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def heed(numbers: Sequence[int]) -> None:
    """Takes back that signals are ignored, in a process that sends them to itself: a platform whose services run under
    ``nohup`` hands that on to all that it starts. Only for the main thread."""
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _call(act: Callable[[], None], number: int, frame: FrameType | None) -> None:
    del number, frame
    act()


def _refuse(number: int, frame: FrameType | None) -> None:
    del number, frame
    # One bare write: a handler may run in the middle of another one.
    os.write(2, b"tfcollective: a running job cannot be suspended; Ctrl-C ends it\n")
