"""Sends what a node prints to the coordinator as well, where the launcher of the job, or its submitter, reads along.

What is printed goes where it went before in any case: there it is kept.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TextIO

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import FOREVER, Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import OutputPiece, ReadOutput, Show
from tfcollective._launch.agent.output import LineSplitter

_LOG = get_logger(__name__)
_READ_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18
_MAX_WAITING_BYTES = 4 << 20
_GATHER_S = 0.2
_WAIT_S = 1.0
_STREAMS = {1: "stdout", 2: "stderr"}


class OutputRelay:
    """A context manager: while it is open, descriptors 1 and 2 of this process lead through it.

    What the coordinator does not take in time is not sent; how much that was is said once it goes on.
    """

    def __init__(self, client: CoordinatorClient, node: str) -> None:
        self._client = client
        self._outbox = Outbox(node, _MAX_WAITING_BYTES)
        self._kept: dict[int, int] = {}
        self._readers: list[threading.Thread] = []
        self._sender = threading.Thread(target=self._send, name="tfc-relay", daemon=True)

    def __enter__(self) -> OutputRelay:
        for descriptor, stream in _STREAMS.items():
            self._kept[descriptor] = os.dup(descriptor)
            reader, writer = os.pipe()
            os.dup2(writer, descriptor)  # what we start inherits it
            os.close(writer)
            pump = threading.Thread(target=self._pump, args=(reader, self._kept[descriptor], stream), daemon=True)
            pump.start()
            self._readers.append(pump)
        self._sender.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close(7.0)

    def close(self, timeout: float) -> None:
        """Puts the descriptors back and sends what is left, for at most ``timeout`` seconds."""
        for descriptor, kept in self._kept.items():
            os.dup2(kept, descriptor)
        deadline = time.monotonic() + timeout
        for reader in self._readers:  # they end when no process holds the other end any longer
            reader.join(max(0.0, min(2.0, deadline - time.monotonic())))
        self._outbox.close()
        self._sender.join(max(0.0, deadline - time.monotonic()))

    def _pump(self, source: int, target: int, stream: str) -> None:
        splitter = LineSplitter()
        while data := os.read(source, _READ_BYTES):
            _write_all(target, data)
            self._outbox.add(stream, b"".join(splitter.feed(data)))
        self._outbox.add(stream, splitter.finish())
        os.close(source)

    def _send(self) -> None:
        while (piece := self._outbox.take(_GATHER_S)) is not None:
            try:
                self._client.call(Show(piece))
            except CoordinatorError as error:
                _LOG.debug("node: %s", error)  # its end is noticed elsewhere


class OutputFollower:
    """A context manager: while it is open, shows here what the nodes print through :class:`OutputRelay`.

    Args:
        client: of the coordinator; it is the follower's from now on.
        stdout: where to show it, a text stream; None: ``sys.stdout``.
        stderr: the same of their stderr.
    """

    def __init__(self, client: CoordinatorClient, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self._client = client
        self._ended = threading.Event()
        arguments = (Channel(client, cancelled=self._ended.is_set), self._ended, stdout, stderr)
        self._reader = threading.Thread(target=show_output, args=arguments, name="tfc-reader", daemon=True)

    def __enter__(self) -> OutputFollower:
        self._reader.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Shows what is left, once all nodes have ended."""
        self._ended.set()
        self._reader.join(TIMING.last_output)
        self._client.close()


def show_output(
    channel: Channel, ended: threading.Event, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> None:
    """Shows what the nodes of a job print until there is no more of it once it has ``ended``."""
    position = 0
    with suppress(CoordinatorError):  # it has ended, and the last output does not come any more
        while True:
            last = ended.is_set()
            page = channel.ask(ReadOutput(position, 0.0 if last else _WAIT_S), FOREVER)
            if page.lost:
                _show(stderr or sys.stderr, f"tfcollective: {page.lost} pieces of output came too fast to be shown\n")
            for piece in page.pieces:
                _show((stderr or sys.stderr) if piece.stream == "stderr" else (stdout or sys.stdout), piece.text)
            position = page.position
            if last and not page.pieces:
                return


def _show(stream: TextIO, text: str) -> None:
    """Writes output of the job as well as it can be: a terminal that lacks a letter, or a pipe without a
    reader, is no reason to stop following the job."""
    with suppress(OSError, ValueError):
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


class Outbox:
    """A bounded queue of output to send, in order; several threads add to it, one takes from it."""

    def __init__(self, node: str, max_bytes: int) -> None:
        self._node = node
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._used = 0
        self._lost = 0
        self._closed = False
        self._changed = threading.Condition()

    def add(self, stream: str, data: bytes) -> None:
        """Appends whole lines; drops them when too much waits already."""
        if not data:
            return
        with self._changed:
            if self._used + len(data) > self._max_bytes:
                self._lost += len(data)
                return
            if self._lost:
                self._append("stderr", b"(%d bytes of output are only in the container's log)\n" % self._lost)
                self._lost = 0
            self._append(stream, data)
            self._changed.notify()

    def take(self, gather: float) -> OutputPiece | None:
        """The next piece, which gathers what one stream adds within ``gather`` seconds; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            if not self._closed:
                self._changed.wait_for(lambda: self._closed or self._used >= _PIECE_BYTES, gather)
            stream, data = self._pop()
            while self._waiting and self._waiting[0][0] == stream and len(data) < _PIECE_BYTES:
                data += self._pop()[1]
        return OutputPiece(self._node, stream, data.decode("utf-8", "replace"))

    def close(self) -> None:
        """Ends the queue: nothing more comes."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _append(self, stream: str, data: bytes) -> None:
        self._waiting.append((stream, data))
        self._used += len(data)

    def _pop(self) -> tuple[str, bytes]:
        stream, data = self._waiting.popleft()
        self._used -= len(data)
        return stream, data


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes what can be written, nothing where the disk is full: those that write into the pipe need its reader."""
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
