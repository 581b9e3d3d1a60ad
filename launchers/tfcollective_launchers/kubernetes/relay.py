"""A port of this host that leads elsewhere: through the API server to a pod, and in the pod to the coordinator."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from tfcollective.launcher import BACKLOG, GuardedListener, LaunchError, get_logger

_LOG = get_logger(__name__)
_CHUNK = 1 << 16


class Relay:
    """A context manager: while it is open, each connection to a port of the loopback interface is paired with another
    one. Only processes of this host (or pod) can connect, and what it leads to asks for a proof of the job key. Clients
    speak first: a connection that says nothing leads nowhere, and is given up.

    Args:
        connect: opens the other connection, a socket; raises OSError or LaunchError.
        port: the port; 0: any free one.
    """

    def __init__(self, connect: Callable[[], Any], port: int = 0) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._closed = False

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, name="tfc-relay", daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        with self._lock:
            self._closed = True
            connections, self._open = self._open, set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for connections
        self._listener.close()
        for one in connections:
            _end(one)

    def _accept(self) -> None:
        with suppress(OSError), closing(GuardedListener(self._listener, _Client).answering()) as speaking:
            for client in speaking:
                near = client.connection
                near.setblocking(True)
                try:
                    threading.Thread(target=self._serve, args=(near,), name="tfc-relay", daemon=True).start()
                except RuntimeError as error:  # there are too many threads
                    _LOG.info("kubernetes: %s", error)
                    near.close()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = self._connect()
        except (OSError, LaunchError) as error:
            _LOG.info("kubernetes: %s", error)
            near.close()  # the client sees it, and tries again
            return
        with self._lock:
            if self._closed:
                _end(near)
                _end(far)
                return
            self._open |= {near, far}
        back = threading.Thread(target=_copy, args=(far, near), name="tfc-relay", daemon=True)
        back.start()
        _copy(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
        _end(near)
        _end(far)


class _Client:
    """A connection that has yet to say something."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)

    def has_answered(self) -> bool:
        """True if there is something to read, or the end of the stream."""
        return True


def _copy(source: Any, target: Any) -> None:
    """Copies until the source ends; then both directions are closed."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for one in (source, target):
        _shut(one)


def _shut(one: Any) -> None:
    """Ends the connection, and with it waits of other threads for it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _end(one: Any) -> None:
    _shut(one)
    with suppress(OSError):
        one.close()
