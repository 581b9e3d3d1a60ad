"""Ctrl-C, and SIGTERM to process 1 of a container, while the main thread waits in native code.

Python runs signal handlers between bytecodes, so a main thread that waits inside a collective would not see SIGINT
before the operation's deadline. The C-level handler does write the signal's number to the wakeup descriptor: a thread
reads it, and if the same operation still waits a second later it aborts the communicator. The operation ends,
the main thread is back in Python, and KeyboardInterrupt is raised.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from tfcollective._base.timing import TIMING
from tfcollective._runtime.communicator import CommunicatorInfo
from tfcollective._runtime.ends import terminated

_STOP = 0  # no signal has this number
_LEFT_SET: set[int] = set()  # wakeup descriptors of ours that no main thread has given back
# The signals, with the handlers, that are to end the main thread, and what the other ranks hear.
_ENDING: dict[int, tuple[Callable[[int, FrameType | None], object], str]] = {
    signal.SIGINT: (signal.default_int_handler, "KeyboardInterrupt"),
    signal.SIGTERM: (terminated, "SIGTERM"),
}


def is_stuck(before: CommunicatorInfo | None, after: CommunicatorInfo | None) -> bool:
    """True if an operation waits and none has ended between two snapshots."""
    if before is None or after is None:
        return False
    return after.pending > 0 and after.completed == before.completed and not after.broken


class InterruptWatch:
    """Watches for these signals from :meth:`start`, called in the main thread, to :meth:`stop`.

    Does nothing when the program uses the wakeup descriptor itself (asyncio does) or handles the signal itself.

    Args:
        snapshot: the communicator's state; None where there is none now.
        abort: ends its operations; takes the cause.
        stuck_after: how long (s) an operation may stand still.
    """

    def __init__(
        self,
        snapshot: Callable[[], CommunicatorInfo | None],
        abort: Callable[[str], None],
        stuck_after: float = TIMING.stuck,
    ) -> None:
        self._stuck_after = stuck_after
        self._snapshot = snapshot
        self._abort = abort
        self._read_end = self._write_end = -1
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Starts watching; false if this thread or this program does not allow it."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self._read_end, True)
        previous = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        if previous not in (-1, *_LEFT_SET):
            signal.set_wakeup_fd(previous)
            self._close()
            return False
        self._thread = threading.Thread(target=self._watch, name="tfcollective-interrupt", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ends the thread, and gives the wakeup descriptor back. Only the main thread can do that: in another one both
        ends of the pipe stay open, or the next file to be opened would get the number that Python writes to."""
        if self._thread is None:
            return
        gives_back = threading.current_thread() is threading.main_thread()
        if gives_back:
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._write_end):
                signal.set_wakeup_fd(current)
        self._stopped.set()
        os.write(self._write_end, bytes([_STOP]))
        self._thread.join()
        self._thread = None
        if gives_back:
            self._close()
        else:
            _LEFT_SET.add(self._write_end)

    def forget(self) -> None:
        """Forgets pipe and thread in a forked child: the pipe is the parent's, the thread does not exist here."""
        if self._thread is not None and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        self._thread = None

    def _close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def _watch(self) -> None:
        while True:
            numbers = os.read(self._read_end, 64)
            if self._stopped.is_set():
                return
            for number, (handler, cause) in _ENDING.items():
                if number in numbers and signal.getsignal(number) is handler:
                    self._free_main_thread(cause)

    def _free_main_thread(self, cause: str) -> None:
        before = self._snapshot()
        if self._stopped.wait(self._stuck_after):
            return
        if is_stuck(before, self._snapshot()):
            self._abort(cause)
