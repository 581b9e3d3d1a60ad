"""The protocol between a coordinator and its clients, and the options that a coordinator is started with."""

from __future__ import annotations

import errno
import json
import math
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import PortRange
from tfcollective._control.state.rounds import Bounds

MAX_BODY_BYTES = 4 << 20
BACKLOG = 4096  # in a large job all connect at once
# A peer whose host is gone is noticed after a minute and a half; a firewall that forgets connections keeps idle ones.
_IDLE_S, _PROBE_S, _PROBES = 60, 10, 3
REQUEST_HEAD = struct.Struct(">BI")  # the bytes of the path and of the body, which follow
REPLY_HEAD = struct.Struct(">BI")  # the ReplyStatus, and the bytes of the body, which follows
# JSON has no NaN and no infinity: in published values they travel as text, and become numbers again.
_NUMBERS = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}


class ReplyStatus(IntEnum):
    """The kind of a reply."""

    OK = 0  # the answer
    CONFLICT = 1  # the request contradicts the state
    REFUSED = 2  # the request is none that can be answered


@dataclass(frozen=True)
class ServerOptions:
    """The options that a coordinator is started with.

    Attributes:
        job_id: the name of the job.
        key: the job key.
        tasks: the tasks that form the world.
        start_timeout: how long (s) the tasks may wait for each other, from the first one's join on.
        bind_host: the address of the interface to listen on.
        bind_port: the port; 0: any free one of ``ports``.
        ports: None: all.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        stall_warning: after how long (s) a member's wait for others is told; 0: never.
        proof_timeout: how long (s) a client may take to prove the key.
        max_store_bytes: the size of all values together.
        auxiliary_tasks: the tasks outside the world.
        first_generation: the number of the first world; a job that is started again counts on.
        bounds: how many ranks the worlds of an elastic job have; None: every world has all tasks.
    """

    job_id: str
    key: bytes = field(repr=False)
    tasks: tuple[TaskKey, ...]
    start_timeout: float
    bind_host: str = "127.0.0.1"
    bind_port: int = 0
    silence_limit: float = math.inf
    stall_warning: float = 0.0
    proof_timeout: float = 10.0
    max_store_bytes: int = 1 << 30
    auxiliary_tasks: tuple[TaskKey, ...] = ()
    first_generation: int = 1
    bounds: Bounds | None = None
    ports: PortRange | None = None

    def listen(self) -> socket.socket:
        """Returns a socket that listens at the coordinator's address. Raises CoordinatorError."""
        wanted: Sequence[int] = (self.bind_port,)
        text = f"port {self.bind_port or '(any)'}"
        if self.ports is not None and not self.bind_port:
            wanted, text = range(self.ports.low, self.ports.high + 1), f"ports {self.ports} (--port-range)"
        try:
            return _first_free(self.bind_host, wanted)
        except OSError as error:
            raise CoordinatorError(f"the coordinator cannot listen on {self.bind_host}, {text}: {error}") from error


def _first_free(host: str, ports: Sequence[int]) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    for port in ports:
        try:
            return socket.create_server((address[0], port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                raise
    raise OSError(errno.EADDRINUSE, "no port is free")


def keep_alive(connection: socket.socket) -> None:
    """Has the kernel notice that the other end is gone, of a connection that is idle, or that sends."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (_IDLE_S + _PROBES * _PROBE_S))


def write_published(info: Mapping[str, object]) -> dict[str, object]:
    """The same without numbers that JSON does not know. TypeError when it holds what JSON does not know otherwise."""
    said: dict[str, object] = json.loads(json.dumps(dict(info)), parse_constant=str)
    return said


def read_published(value: Any) -> Any:
    """Reverses :func:`write_published`."""
    if isinstance(value, Mapping):
        return {name: read_published(one) for name, one in value.items()}
    if isinstance(value, list):
        return [read_published(one) for one in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
