"""The output of the processes: whole lines with a prefix, copies in files, the last lines of stderr."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO

from tfcollective.log import get_logger

__all__ = ["Console", "LineSplitter", "OutputPump", "Tail"]

_LOG = get_logger(__name__)
_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_TAIL_LINES = 20
_TAIL_LINE_BYTES = 2000


class LineSplitter:
    """Cuts a stream into pieces that end in a line feed or a carriage return: pure, bytes only.

    A progress bar rewrites its line with carriage returns, so each of its states is a piece of its own.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that ``data`` completes."""
        rest = self._rest + data
        start = 0
        while (end := _piece_end(rest, start)) > start:
            yield rest[start:end]
            start = end
        self._rest = rest[start:]

    def finish(self) -> bytes:
        """What is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest


def _piece_end(data: bytes, start: int) -> int:
    """Where the piece that begins at ``start`` ends; ``start`` itself if it is not complete yet."""
    ends = [position for mark in (b"\n", b"\r") if (position := data.find(mark, start)) >= 0]
    if not ends:
        return start + _MAX_LINE_BYTES if len(data) - start >= _MAX_LINE_BYTES else start
    end = min(ends) + 1
    if data[end - 1 : end] == b"\r":
        if end == len(data):
            # A line feed may follow in the next read; a bare carriage return shows up there as well.
            return start
        if data[end : end + 1] == b"\n":
            end += 1
    return end


class Tail:
    """The last lines of a stream. May be read while another thread adds to it."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, piece: bytes) -> None:
        """Remembers a piece; states of a progress bar (they end in a carriage return) are left out."""
        line = piece.rstrip(b"\r\n")
        if line and not piece.endswith(b"\r"):
            self._lines.append(line[-_TAIL_LINE_BYTES:])

    def lines(self) -> tuple[str, ...]:
        """The lines as text."""
        return tuple(line.decode("utf-8", "replace") for line in list(self._lines))


class Console:
    """Where all processes' output goes: a descriptor that several threads write whole pieces to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._broken = False

    def write(self, data: bytes) -> None:
        """Writes all of it, or nothing once the reader has gone away."""
        with self._lock:
            while data and not self._broken:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except OSError as error:
                    self._broken = True
                    _LOG.info("the output is no longer shown: %s", error)


@dataclass
class OutputPump:
    """Moves one stream of one process to where it belongs, in a thread of its own.

    Attributes:
        source: the reading end of the process's pipe; the pump closes it.
        console: where to show it.
        prefix: what every shown piece begins with.
        copy: a file that gets the bytes as they are, or None; the pump closes it.
        tail: remembers the last lines, or None.
    """

    source: IO[bytes]
    console: Console
    prefix: bytes
    copy: BinaryIO | None = None
    tail: Tail | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tfc-output", daemon=True)

    def start(self) -> None:
        """Starts the thread; it ends with the stream."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits for the end of the stream, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        splitter = LineSplitter()
        while data := os.read(self.source.fileno(), _READ_BYTES):
            self._keep(data)
            for piece in splitter.feed(data):
                self._show(piece)
        if rest := splitter.finish():
            self._show(rest if rest.endswith((b"\r", b"\n")) else rest + b"\n")
        self.source.close()
        if self.copy is not None:
            self.copy.close()

    def _keep(self, data: bytes) -> None:
        if self.copy is None:
            return
        try:
            self.copy.write(data)
        except OSError as error:
            _LOG.error("cannot write %s: %s", self.copy.name, error)
            self.copy = None

    def _show(self, piece: bytes) -> None:
        if self.tail is not None:
            self.tail.add(piece)
        self.console.write(self.prefix + piece)
