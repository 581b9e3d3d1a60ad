"""Sends what a node prints to the coordinator as well, where the submitter of the job reads along.

What is printed goes where it went before in any case: there it is kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress

from tfcollective.agent.output import LineSplitter
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.output_log import OutputPiece
from tfcollective.errors import CoordinatorError
from tfcollective.log import get_logger

_LOG = get_logger(__name__)
_READ_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18
_MAX_WAITING_BYTES = 4 << 20
_GATHER_S = 0.2
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
                self._client.show(piece)
            except CoordinatorError as error:
                _LOG.debug("node: %s", error)  # its end is noticed elsewhere


class Outbox:
    """What waits to be sent, in order and bounded; for several threads that add and one that takes."""

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
        """Nothing more comes."""
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
