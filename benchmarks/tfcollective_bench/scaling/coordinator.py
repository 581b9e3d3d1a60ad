"""A coordinator in a process of its own, for what measures it from outside."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
from collections.abc import Iterator
from multiprocessing.connection import Connection

import psutil

from tfcollective._base.errors import ResourceExhaustedError
from tfcollective._base.tasks import workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire.protocol import ServerOptions

__all__ = ["coordinator_of"]

_SPARE_FILES = 64
_ENDS_S = 10.0


@contextlib.contextmanager
def coordinator_of(
    key: bytes, ranks: int, timeout: float, connections: int
) -> Iterator[tuple[Endpoint, psutil.Process]]:
    """Runs a coordinator for `ranks` ranks while it is open: yields its address and its process.

    Raises:
        ResourceExhaustedError: this user may not open as many files as so many connections need.
    """
    files = connections + _SPARE_FILES
    _allow_files(files)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, key, ranks, timeout, files))
    server.start()
    theirs.close()
    try:
        yield ours.recv(), psutil.Process(server.pid)
        ours.send(None)
    finally:
        server.join(_ENDS_S)
        if server.is_alive():
            server.kill()
            server.join()


def _serve(connection: Connection, key: bytes, ranks: int, timeout: float, files: int) -> None:
    """The coordinator's process: serves until it is asked to end, or the other side has ended."""
    _allow_files(files)
    with CoordinatorServer(ServerOptions("scaling", key, workers(ranks), timeout, silence_limit=timeout)) as server:
        connection.send(server.endpoint)
        try:
            connection.recv()
        except EOFError:
            return


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        raise ResourceExhaustedError(f"{wanted} open files are needed and {hard} are allowed: ulimit -Hn {wanted}")
    if soft not in (resource.RLIM_INFINITY,) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
