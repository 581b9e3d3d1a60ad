"""The coordinator as ranks and agents see it: blocking calls with deadlines, safe to use from several threads."""

from __future__ import annotations

import os
import ssl
import threading
import time

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import decode, encode, from_document
from tfcollective._base.errors import ConfigError, CoordinatorError, RendezvousError
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control import messages
from tfcollective._control.messages import DumpedTask, Entry, R
from tfcollective._control.state import blobs
from tfcollective._control.wire.connection import (
    Access,
    Connection,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
    InterceptedError,
    OtherJobError,
    UnprovenReplyError,
)
from tfcollective._control.wire.protocol import MAX_BODY_BYTES, ReplyStatus

__all__ = [
    "CoordinatorClient",
    "CoordinatorRefusedError",
    "CoordinatorUnreachableError",
    "InterceptedError",
    "OtherJobError",
    "UnprovenReplyError",
]

_CONNECTIONS = 4


class WorldBegunError(RendezvousError):
    """The first world of the job has been formed without this task."""


class TrainingOverError(RendezvousError):
    """Raised when there is no next world because rank 0 has completed the training."""


class AskedToLeaveError(RendezvousError):
    """Raised when this task has to leave because its node is preempted; the job continues. The text says why."""


class CoordinatorClient:
    """A connection to the coordinator of one job. Opens nothing before the first call.

    ``job_id`` is the name of the job; see :class:`Access`. ``reply_timeout`` is how long (s) an answer may take, on top
    of what a call waits for on purpose; ``connections`` is how many calls at a time find one open.

    Every call raises CoordinatorError when the coordinator cannot be reached, does not answer in time, does not
    prove the job key, is another job's, or refuses the request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: bytes,
        job_id: str | None = None,
        *,
        reply_timeout: float = TIMING.reply,
        connections: int = _CONNECTIONS,
    ) -> None:
        self._access = Access(endpoint, key, job_id)
        self._reply_timeout = reply_timeout
        self._most_idle = connections
        self._idle: list[Connection] = []
        self._owner = os.getpid()  # of the idle connections
        self._lock = threading.Lock()  # over them
        self._closed = False

    @classmethod
    def to(
        cls,
        coordinator: str,
        key: bytes,
        job_id: str | None = None,
        *,
        reply_timeout: float = TIMING.reply,
        connections: int = _CONNECTIONS,
    ) -> CoordinatorClient:
        """The same for ``coordinator``, a HOST:PORT."""
        return cls(Endpoint.parse(coordinator), key, job_id, reply_timeout=reply_timeout, connections=connections)

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        self._closed = True
        self._close_idle()

    @property
    def endpoint(self) -> Endpoint:
        """The address that the coordinator listens on."""
        return self._access.endpoint

    @property
    def closed(self) -> bool:
        """True once its owner has closed it; threads that retry after errors then end."""
        return self._closed

    def call(self, request: messages.Request[R]) -> R:
        """The answer to ``request``. Raises CoordinatorRefusedError if it contradicts the job's state, and
        CoordinatorUnreachableError when no answer comes in time."""
        data = encode(request)
        if len(data) > MAX_BODY_BYTES:
            raise CoordinatorError(f"a message of {len(data)} bytes is too large; {MAX_BODY_BYTES} are allowed")
        kept = min(getattr(request, "timeout", 0.0), TIMING.longest_poll)  # by the coordinator, until it has an answer
        status, reply = self._exchange(request.path, data, kept)
        try:
            if status == ReplyStatus.OK:
                answer: R = decode(reply, request.answer, "the coordinator's answer")
                return answer
            reason = decode(reply, messages.Refused, "the coordinator's refusal").error
        except ConfigError as error:
            raise CoordinatorError(str(error)) from error
        if status == ReplyStatus.CONFLICT and isinstance(request, messages.Join):
            raise RendezvousError(reason)
        raise CoordinatorRefusedError(f"the coordinator at {self._access.endpoint} refused {request.path}: {reason}")

    def dump(self, tasks: tuple[TaskKey, ...] = ()) -> tuple[DumpedTask, ...]:
        """The stacks of these tasks, or of all, as far as they come in time."""
        answer = self.call(messages.Dump(TIMING.dump, tasks))
        try:
            return messages.unpack_dump(answer.tasks)
        except ConfigError as error:
            raise CoordinatorError(str(error)) from error

    # ---- the coordinator's clock ------------------------------------------------------------------------------------

    def clock_offset(self, samples: int) -> int:
        """Nanoseconds by which the coordinator's monotonic clock is ahead of this process's.

        The answer with the shortest way of `samples` counts (Cristian, Distributed Computing 3, 1989): the error is
        at most half of that way.
        """
        best: tuple[int, int] | None = None
        for _ in range(samples):
            sent = time.monotonic_ns()
            there = self.call(messages.ReadClock()).monotonic_ns
            received = time.monotonic_ns()
            measured = (received - sent, there - (sent + received) // 2)
            best = measured if best is None else min(best, measured)
        return 0 if best is None else best[1]

    # ---- key-value store -------------------------------------------------------------------------------------------

    def put(self, key: str, value: object) -> int:
        """Sets a JSON value and returns its version."""
        return self.call(messages.Put(key, value)).version

    def get(self, key: str) -> Entry | None:
        """The newest value of a key, or None."""
        return self.call(messages.Get(key)).entry

    def wait(self, key: str, *, timeout: float, newer_than: int = 0) -> Entry | None:
        """The newest value of a key once its version is above ``newer_than``; None after ``timeout`` seconds."""
        deadline = Deadline.after(timeout)
        while True:
            entry = self.call(messages.Get(key, newer_than, min(TIMING.poll, deadline.remaining()))).entry
            if entry is not None or deadline.expired():
                return entry

    def put_blob(self, name: str, data: bytes) -> None:
        """Stores bytes of any length under ``name``."""
        for key, value in blobs.encode(name, data):
            self.put(key, value)

    def get_blob(self, name: str, *, timeout: float) -> bytes | None:
        """The bytes stored under ``name``; None when they are not there within ``timeout`` seconds."""
        count = self.wait(blobs.count_key(name), timeout=timeout)
        if count is None:
            return None
        indices = range(from_document(count.value, int, f"the number of segments of {name}"))
        segments = [self.get(blobs.segment_key(name, index)) for index in indices]
        return b"".join(blobs.decode(segment.value if segment else None) for segment in segments)

    # ---- transport -------------------------------------------------------------------------------------------------

    def _exchange(self, path: str, data: bytes, wait: float) -> tuple[int, bytes]:
        timeout = wait + self._reply_timeout
        try:
            try:
                return self._ask(self._take_idle() or self._open(timeout), path, data, timeout)
            except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
                # The other end may have closed it while it was idle: a fresh one tells the truth.
                return self._ask(self._open(timeout), path, data, timeout)
        except CoordinatorError:
            raise  # is an OSError too, and says it better
        except OSError as error:
            self._close_idle()  # what has broken this one may have broken them, and each would take as long to show it
            text = str(error) or type(error).__name__
            raise CoordinatorUnreachableError(
                f"no answer from the coordinator at {self._access.endpoint}: {text}"
            ) from error

    def _ask(self, connection: Connection, path: str, data: bytes, timeout: float) -> tuple[int, bytes]:
        answer = connection.ask(path, data, timeout)
        with self._idle_lock():
            keep = connection.usable and not self._closed and len(self._idle) < self._most_idle
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        return answer

    def _open(self, timeout: float) -> Connection:
        return Connection.open(self._access, timeout)

    def _take_idle(self) -> Connection | None:
        """Takes the connection that was used last: it is the least likely to have been closed."""
        with self._idle_lock():
            return self._idle.pop() if self._idle else None

    def _close_idle(self) -> None:
        with self._idle_lock():
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _idle_lock(self) -> threading.Lock:
        """The lock over the idle connections. The child of a fork uses none of its parent's, as they would read each
        other's replies, and has a lock of its own: another thread of the parent may have held that one."""
        if self._owner != os.getpid():
            inherited, self._idle = self._idle, []
            self._owner, self._lock = os.getpid(), threading.Lock()
            for connection in inherited:
                connection.close()  # of this process's descriptor: nothing is sent
        return self._lock
