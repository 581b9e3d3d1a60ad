"""The coordinator as ranks and agents see it: blocking calls with deadlines, safe to use from several threads."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import decode, encode, from_document
from tfcollective._base.errors import ConfigError, CoordinatorError, RendezvousError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, World
from tfcollective._control.state import blobs
from tfcollective._control.state.output_log import OutputPage, OutputPiece
from tfcollective._control.state.rounds import JoinRequest
from tfcollective._control.state.store import Entry
from tfcollective._control.wire import messages
from tfcollective._control.wire.connection import (
    Access,
    Connection,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
    InterceptedError,
    OtherJobError,
    UnprovenReplyError,
)
from tfcollective._control.wire.protocol import MAX_BODY_BYTES

__all__ = [
    "CoordinatorClient",
    "CoordinatorRefusedError",
    "CoordinatorUnreachableError",
    "InterceptedError",
    "OtherJobError",
    "UnprovenReplyError",
]

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_CONNECTIONS = 4
_CONFLICT = 409
_MOST_NAMES = 8
_OK = 200


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")


class WorldBegunError(RendezvousError):
    """The first world of the job has been formed without this task."""


class TrainingOverError(RendezvousError):
    """There is no next world because rank 0 has completed the training."""


class AskedToLeaveError(RendezvousError):
    """This task's node is to be taken away: it leaves the job, which goes on. The text says why."""


class CoordinatorClient:
    """A connection to the coordinator of one job. Opens nothing before the first call.

    ``job_id`` is the name of the job, ``encryption`` the setting; see :class:`Access`. ``reply_timeout`` is how long
    (s) an answer may take, on top of what a call waits for on purpose; ``connections`` is how many calls at a time find
    one open.

    Every call raises CoordinatorError when the coordinator cannot be reached, does not answer in time, does not
    prove the job key, is another job's, or refuses the request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: bytes,
        job_id: str | None = None,
        *,
        encryption: str = "auto",
        reply_timeout: float = TIMING.reply,
        connections: int = _CONNECTIONS,
    ) -> None:
        self._access = Access(endpoint, key, job_id, encryption)
        self._reply_timeout = reply_timeout
        self._most_idle = connections
        self._idle: list[Connection] = []
        self._lock = threading.Lock()  # over the idle connections
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
        forwarded: bool = False,
    ) -> CoordinatorClient:
        """The same for ``coordinator``, a HOST:PORT, with the encryption that this process's settings ask for. One that
        is ``forwarded`` is on another host, though the port is one of this host."""
        at, encryption = Endpoint.parse(coordinator), Settings.load().encryption
        if forwarded and encryption == "auto":
            encryption = "on"
        return cls(at, key, job_id, encryption=encryption, reply_timeout=reply_timeout, connections=connections)

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @property
    def endpoint(self) -> Endpoint:
        """Where the coordinator listens."""
        return self._access.endpoint

    @property
    def closed(self) -> bool:
        """Whether its owner has closed it: threads that go on after errors end then."""
        return self._closed

    # ---- membership ------------------------------------------------------------------------------------------------

    def join(
        self,
        task: TaskKey,
        *,
        size: int,
        node: str,
        pid: int,
        address: str,
        timeout: float,
        lost: int | None = None,
        first: bool = False,
        ancestors: Sequence[int] = (),
    ) -> World:
        """Joins the next world and blocks until all tasks have.

        ``timeout`` (seconds) is a guard for the case that the coordinator does not end the wait itself; ``lost`` is the
        rank of the last world whose connection has ended. Raises RendezvousError that names the missing tasks, or the
        task that ended before it had joined; ``first``: WorldBegunError where the first world has been formed without
        this task, which has not joined then. TrainingOverError: there is none because training is complete.
        AskedToLeaveError: its node is to be taken away. ``ancestors`` as in :class:`JoinRequest`.
        """
        request = JoinRequest(task, size, node, pid, address, tuple(ancestors))
        deadline = Deadline.after(timeout + TIMING.join_margin)
        while True:
            last = deadline.expired()  # does not wait, and so learns who is missing
            wait = 0.0 if last else min(TIMING.remind, deadline.remaining())
            reply = self._call(messages.Join(request, wait, lost, first), messages.Joined, wait=wait)
            if reply.world is not None:
                return messages.unpack_world(reply.world)
            if reply.leave is not None:
                raise AskedToLeaveError(reply.leave)
            if reply.begun:
                raise WorldBegunError(f"{task} has come too late to the first world of the job")
            if reply.over:
                raise TrainingOverError(reply.failure or "training is complete")
            if reply.failure is not None:
                raise RendezvousError(reply.failure, missing=reply.missing)
            if self._closed:
                raise CoordinatorError("this process has left the job while it waited for the next world")
            if reply.missing and not last:
                _LOG.warning("init() waits for %s", _some_of(reply.missing))
            if last:
                text = f"no world within {timeout:g} s; missing: {', '.join(reply.missing)}"
                raise RendezvousError(text, missing=reply.missing)

    def heartbeat(self, task: TaskKey, activity: str, info: Mapping[str, object], said: float = 0.0) -> None:
        """Gives a sign of life of the task: what it does (a word), what it counts (JSON values), and when it ``said``
        so, on the monotonic clock of its host."""
        self._call(messages.Beat(task, activity, info, said), messages.Nothing)

    def alive(self, name: str, beats: Sequence[messages.Beat] = ()) -> None:
        """Gives a sign of life of the process of this name, which is not a task, and hands on those of its tasks."""
        self._call(messages.Alive(name, tuple(beats)), messages.Nothing)

    def leave(self, task: TaskKey, *, for_good: bool = False, why: str = "", ends: bool = False) -> None:
        """Says that the task leaves the world in order; ``for_good``: an elastic job goes on without it. ``why`` is for
        people; ``ends``: its process is about to end, in whatever way."""
        self._call(messages.Leave(task, for_good, why, ends), messages.Nothing)

    def node_leaves(self, tasks: Sequence[TaskKey], why: str, change: int = 0) -> None:
        """Says that the node of these tasks of an elastic job is to be taken away, and why: for agents."""
        self._call(messages.NodeLeaves(tuple(tasks), why, change), messages.Nothing)

    def done(self, task: TaskKey, *, again: bool = False) -> None:
        """Says that the task of an elastic job has completed the training, or, ``again``, begins another one."""
        self._call(messages.Done(task, again), messages.Nothing)

    def failing(self, task: TaskKey, cause: str) -> None:
        """Says that the task ends by an error of the program, which ends an elastic job."""
        self._call(messages.Failing(task, cause), messages.Nothing)

    def lost_member(self, generation: int, *, timeout: float) -> tuple[int, str] | None:
        """A member of the world of that generation whose process has ended, as (rank, what happened); None when there
        is none within ``timeout`` seconds (20 at most)."""
        wait = min(TIMING.poll, timeout)
        lost = self._call(messages.FindLost(generation, wait), messages.Lost, wait=wait)
        return None if lost.rank is None else (lost.rank, lost.message)

    def started(self, task: TaskKey, *, node: str, pid: int, host: str = "") -> None:
        """Says that the task's process runs: for agents."""
        self._call(messages.Started(task, node, pid, host), messages.Nothing)

    def exited(self, record: ExitRecord) -> None:
        """Says how a task's process ended: for agents."""
        self._call(messages.Exited(record), messages.Nothing)

    def enroll(self, token: str, facts: Mapping[str, object]) -> int:
        """Says that a node is ready for its part of the job, and what it is like; returns its number.

        ``token`` is random: the same one is the same node.
        """
        return self._call(messages.Enroll(token, facts), messages.Enrolled).number

    def nodes(self, since: int, *, timeout: float) -> messages.NodeList:
        """The nodes that have enrolled, from this number on, as many as one answer holds; none when none comes within
        ``timeout`` seconds (20 at most)."""
        wait = min(TIMING.poll, timeout)
        return self._call(messages.ListNodes(since, wait), messages.NodeList, wait=wait)

    def world_size(self) -> int:
        """How many ranks the world has now; 0 before the first."""
        return self._call(messages.CountMembers(), messages.Members).size

    def status(self) -> Mapping[str, object]:
        """The whole job: ``job``, ``generation``, and one object a task in ``tasks``."""
        return self._call(messages.Status(), dict[str, object])

    def clock_offset(self, samples: int) -> int:
        """Nanoseconds by which the coordinator's monotonic clock is ahead of this process's.

        The answer with the shortest way of `samples` counts (Cristian, Distributed Computing 3, 1989): the error is
        at most half of that way.
        """
        best: tuple[int, int] | None = None
        for _ in range(samples):
            sent = time.monotonic_ns()
            there = self._call(messages.ReadClock(), messages.Time).monotonic_ns
            received = time.monotonic_ns()
            measured = (received - sent, there - (sent + received) // 2)
            best = measured if best is None else min(best, measured)
        return 0 if best is None else best[1]

    def find_gone(self, nodes: Sequence[int], limit: float) -> frozenset[int]:
        """Which of the enrolled nodes with these numbers have gone: their agents have said how they have ended, or have
        not been :meth:`alive` for ``limit`` seconds."""
        return frozenset(self._call(messages.FindGone(tuple(nodes), limit), messages.Gone).nodes)

    # ---- key-value store -------------------------------------------------------------------------------------------

    def put(self, key: str, value: object) -> int:
        """Sets a JSON value and returns its version."""
        return self._call(messages.Put(key, value), messages.Stored).version

    def get(self, key: str) -> Entry | None:
        """The newest value of a key, or None."""
        return self._entry(messages.Get(key))

    def wait(self, key: str, *, timeout: float, newer_than: int = 0) -> Entry | None:
        """The newest value of a key once its version is above ``newer_than``; None after ``timeout`` seconds."""
        deadline = Deadline.after(timeout)
        while True:
            entry = self._entry(messages.Get(key, newer_than, min(TIMING.poll, deadline.remaining())))
            if entry is not None or deadline.expired():
                return entry

    def wait_while(
        self, key: str, name: str, limit: float, *, first: float | None = None, newer_than: int = 0
    ) -> Entry | None:
        """As :meth:`wait`, for as long as the process ``name`` says that it is :meth:`alive`; None once it has not done
        so for ``limit`` seconds, or for ``first`` seconds if it never has."""
        presence = messages.Presence(name, limit, limit if first is None else first)
        request = messages.Get(key, newer_than, TIMING.poll, presence)
        while True:
            found = self._call(request, messages.Found, wait=request.timeout)
            if found.entry is not None or found.silent:
                return found.entry

    def _entry(self, request: messages.Get) -> Entry | None:
        return self._call(request, messages.Found, wait=request.timeout).entry

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

    def remove_blob(self, name: str) -> None:
        """Has the bytes under ``name`` forgotten; nothing if there are none."""
        self._call(messages.Remove(name), messages.Nothing)

    # ---- output ----------------------------------------------------------------------------------------------------

    def show(self, piece: OutputPiece) -> None:
        """Hands on whole lines of a node's output to the launchers that show it."""
        self._call(messages.Show(piece), messages.Nothing)

    def read_output(self, position: int, *, timeout: float) -> OutputPage:
        """What has been shown since ``position`` (0 at first); nothing when nothing comes within ``timeout`` seconds
        (20 at most)."""
        wait = min(TIMING.poll, timeout)
        return self._call(messages.ReadOutput(position, wait), OutputPage, wait=wait)

    # ---- transport -------------------------------------------------------------------------------------------------

    def _call(self, request: object, kind: type[_T], *, wait: float = 0.0) -> _T:
        """The ``kind`` that answers ``request``, which the coordinator may keep for ``wait`` seconds."""
        path, data = messages.path_of(type(request)), encode(request)
        if len(data) > MAX_BODY_BYTES:
            raise CoordinatorError(f"a message of {len(data)} bytes is too large; {MAX_BODY_BYTES} are allowed")
        status, reply = self._exchange(path, data, wait)
        try:
            if status == _OK:
                return decode(reply, kind, "the coordinator's answer")
            reason = decode(reply, messages.Refused, "the coordinator's refusal").error
        except ConfigError as error:
            raise CoordinatorError(str(error)) from error
        if status == _CONFLICT and isinstance(request, messages.Join):
            raise RendezvousError(reason)
        raise CoordinatorRefusedError(f"the coordinator at {self._access.endpoint} refused {path}: {reason}")

    def _exchange(self, path: str, data: bytes, wait: float) -> tuple[int, bytes]:
        timeout = wait + self._reply_timeout
        try:
            try:
                return self._ask(self._take_idle() or self._open(timeout), path, data, timeout)
            except (http.client.HTTPException, ConnectionResetError, BrokenPipeError, ssl.SSLError):
                # The other end may have closed it while it was idle: a fresh one tells the truth.
                return self._ask(self._open(timeout), path, data, timeout)
        except CoordinatorError:
            raise  # is an OSError too, and says it better
        except (http.client.HTTPException, OSError) as error:
            text = str(error) or type(error).__name__
            raise CoordinatorUnreachableError(
                f"no answer from the coordinator at {self._access.endpoint}: {text}"
            ) from error

    def _ask(self, connection: Connection, path: str, data: bytes, timeout: float) -> tuple[int, bytes]:
        answer = connection.ask(path, data, timeout)
        with self._lock:
            keep = connection.usable and not self._closed and len(self._idle) < self._most_idle
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        return answer

    def _open(self, timeout: float) -> Connection:
        return Connection.open(self._access, timeout)

    def _take_idle(self) -> Connection | None:
        """The one that was used last: it is the least likely to have been closed."""
        with self._lock:
            return self._idle.pop() if self._idle else None
