"""The output of the processes: whole lines with a prefix, copies in files, the last lines of stderr."""

from __future__ import annotations

import math
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO

from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING

_LOG = get_logger(__name__)
_READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 16  # what Linux keeps in a pipe
_MAX_LINE_BYTES = 1 << 16
_TAIL_LINES = 20
_TIME = "%Y-%m-%d %H:%M:%S "
_TAIL_LINE_BYTES = 2000
_LATE_S = 0.05
_DRAIN_S = 0.25  # a descendant may hold the pipe open
_BLOCKED_S = 0.5
# What TensorFlow says of the machine when it starts, and again of each error that it raises.
_NOISE = re.compile(
    rb"All log messages before absl::InitializeLog\(\) is called|oneDNN custom operations are on|cpu_feature_guard\.cc"
    rb"|^To enable the following instructions: .*rebuild TensorFlow|Could not find cuda drivers|cudart_stub\.cc"
    rb"|Unable to register cu\w+ factory|computation_placer already registered|TF-TRT Warning: Could not find TensorRT"
    rb"|failed call to cuInit|cuda_diagnostics\.cc|Cannot dlopen some GPU libraries|^Skipping registering GPU devices"
    rb"|dso_loader\.cc.*(?:Could not load|Successfully opened) dynamic library|MLIR V1 optimization pass is not enabled"
    rb"|NUMA node read from SysFS had negative value|Local rendezvous is aborting with status: "
    rb"|^\s+\[\[\{\{"
)
# A carriage return at the end of what has come so far is no end yet: the line feed of a pair may follow.
_PIECE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


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
        for mark in _PIECE_END.finditer(rest):
            yield rest[start : mark.end()]
            start = mark.end()
        while len(rest) - start >= _MAX_LINE_BYTES:
            yield rest[start : start + _MAX_LINE_BYTES]
            start += _MAX_LINE_BYTES
        self._rest = rest[start:]

    def finish(self) -> bytes:
        """Returns the rest at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest


class Tail:
    """The last lines of a stream that say something. May be read while another thread adds to it."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, piece: bytes) -> None:
        """Remembers a piece; states of a progress bar (they end in a carriage return) are left out, and so is what
        TensorFlow says when it starts."""
        line = piece.rstrip(b"\r\n")
        if line and not piece.endswith(b"\r") and not _NOISE.search(line):
            self._lines.append(line[-_TAIL_LINE_BYTES:])

    def lines(self) -> tuple[str, ...]:
        """The lines as text."""
        return tuple(line.decode("utf-8", "replace") for line in list(self._lines))


class Console:
    """The destination of all processes' output: a descriptor that several threads write whole pieces to."""

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
                except BlockingIOError:
                    self._wait_for_reader()
                except OSError as error:
                    self._broken = True
                    _LOG.info("the output is no longer shown: %s", error)

    def _wait_for_reader(self) -> None:
        """Waits as a blocking write does where another process has made a shared terminal or pipe non-blocking: the
        reader's pace is the processes' pace, and the agent ends without waiting for the thread that is here."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll()


@dataclass
class OutputPump:
    """Moves one stream of one process to where it belongs, in a thread of its own.

    Attributes:
        source: the reading end of the process's pipe; the pump closes it.
        console: where to show it.
        prefix: what every shown piece begins with.
        copy: a file that gets the bytes as they are, or None; the pump closes it.
        tail: remembers the last lines, or None.
        timestamps: whether the time stands before the prefix.
    """

    source: IO[bytes]
    console: Console
    prefix: bytes
    copy: BinaryIO | None = None
    tail: Tail | None = None
    timestamps: bool = False

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tfc-output", daemon=True)
        self._read_bytes = 0
        self._showing_since = math.inf  # it takes as long as the reader likes

    def start(self) -> None:
        """Starts the thread; it ends with the stream."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits for the end of the stream, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def catch_up(self, timeout: float = _DRAIN_S, most: float = TIMING.late_drain) -> None:
        """Waits for the end of the stream, at most ``timeout`` seconds; longer, up to ``most``, only while the pump's
        thread is late, as on a busy machine: there is unread output, and its destination does not block."""
        deadline = time.monotonic() + most
        left = self._read_bytes + _PIPE_BYTES  # output beyond a full pipe is of a descendant that still runs
        self._thread.join(timeout)
        while self._thread.is_alive() and time.monotonic() < deadline and self._read_bytes < left and self._is_late():
            self._thread.join(_LATE_S)

    def _is_late(self) -> bool:
        if time.monotonic() - self._showing_since > _BLOCKED_S:
            return False
        try:
            poll = select.poll()
            poll.register(self.source.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # closed meanwhile
            return False

    def _run(self) -> None:
        splitter = LineSplitter()
        while data := os.read(self.source.fileno(), _READ_BYTES):
            self._keep(data)
            self._show(splitter.feed(data))
            self._read_bytes += len(data)
        if rest := splitter.finish():
            self._show((rest if rest.endswith((b"\r", b"\n")) else rest + b"\n",))
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

    def _show(self, pieces: Iterable[bytes]) -> None:
        shown = bytearray()
        prefix = time.strftime(_TIME).encode() + self.prefix if self.timestamps else self.prefix
        for piece in pieces:
            if self.tail is not None:
                self.tail.add(piece)
            shown += prefix + piece
        self._showing_since = time.monotonic()
        self.console.write(bytes(shown))
        self._showing_since = math.inf
