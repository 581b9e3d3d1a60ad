"""Lines for another process that may not read them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

__all__ = ["LineWriter"]


class LineWriter:
    """Writes lines to a descriptor on a thread of its own: who reads there may have been stopped, and a line that does
    not fit into the pipe would then hold up the launcher for ever.

    Args:
        descriptor: is the writer's from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self) -> LineWriter:
        """Starts the thread; it ends with :meth:`close`, or when the reader is gone."""
        threading.Thread(target=self._run, name="tfc-writer", daemon=True).start()
        return self

    def write(self, line: bytes) -> None:
        """Hands over a line; from any thread, and from signal handlers. One that is gone does not get it."""
        self._lines.put(line)

    def close(self) -> None:
        """Closes the descriptor once all lines are written."""
        self._lines.put(None)

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the reader is gone
                while (line := self._lines.get()) is not None:
                    while line:
                        line = line[os.write(self._descriptor, line) :]
        finally:
            os.close(self._descriptor)
