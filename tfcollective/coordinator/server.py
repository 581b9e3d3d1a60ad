"""The coordinator's server: HTTP/1.1 with JSON in a thread of its own, over the pure membership and store."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web

from tfcollective.clock import SYSTEM_CLOCK, Clock
from tfcollective.coordinator import blobs
from tfcollective.coordinator.auth import SIGNATURE, Signer, Unauthenticated, Verifier
from tfcollective.coordinator.client import MAX_BODY_BYTES
from tfcollective.coordinator.doorkeeper import Doorkeeper
from tfcollective.coordinator.refusals import RefusalLog
from tfcollective.coordinator.requests import BadRequest, Body
from tfcollective.coordinator.state import JoinRequest, Membership, Refusal, RendezvousFailure, TaskView
from tfcollective.coordinator.store import Entry, Store
from tfcollective.errors import CoordinatorError
from tfcollective.failures import ExitRecord
from tfcollective.log import get_logger
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint, World

__all__ = ["CoordinatorServer", "JobView", "ServerOptions"]

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_Reply = Mapping[str, object]
_MAX_POLL_S = 30.0
_LINGER_S = 1.0
_LATE_S = 2.0
_CATCH_UP_S = 5.0
_THREAD_TIMEOUT_S = 10.0
_MAX_UNPROVED = 128
_BACKLOG = 512


@dataclass(frozen=True)
class ServerOptions:
    """What a coordinator is for.

    Attributes:
        job_id: the name of the job.
        key: the job key.
        tasks: the tasks that form the world.
        start_timeout: how long (s) the tasks may wait for each other, from the first one's join on.
        bind_host: the address of the interface to listen on.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        body_timeout: how long (s) a client may take to prove the key, and then to send a request's body.
        max_store_bytes: the size of all values together.
    """

    job_id: str
    key: bytes
    tasks: Sequence[TaskKey]
    start_timeout: float
    bind_host: str = "127.0.0.1"
    silence_limit: float = math.inf
    body_timeout: float = 10.0
    max_store_bytes: int = 1 << 30


@dataclass(frozen=True)
class JobView:
    """What the coordinator knows of its job at one moment."""

    tasks: tuple[TaskView, ...]
    failure: RendezvousFailure | None
    initialised: bool


class CoordinatorServer:
    """Serves one job. ``start()`` and ``close()`` may be called from any thread; the class is a context manager.

    ``on_silent`` is called once for a task that has become silent, on the coordinator's thread: it must not block.
    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock = SYSTEM_CLOCK,
        on_silent: Callable[[TaskKey], None] | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._on_silent = on_silent
        self._membership = Membership(options.tasks, options.start_timeout)
        self._store = Store(options.max_store_bytes)
        self._signer = Signer.from_job_key(options.key)
        self._verifier = Verifier(self._signer, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._doorkeeper = Doorkeeper(options.body_timeout, _MAX_UNPROVED)
        self._changed = asyncio.Event()
        self._expiry: asyncio.Task[None] | None = None
        self._closing = False
        self._endpoint: Endpoint | None = None
        self._refusals = RefusalLog(_LOG, clock)
        self._handlers: dict[str, Callable[[Body], Awaitable[_Reply]]] = {
            "/v1/join": self._join,
            "/v1/heartbeat": self._heartbeat,
            "/v1/leave": self._leave,
            "/v1/started": self._started,
            "/v1/exited": self._exited,
            "/v1/status": self._status,
            "/v1/put": self._put,
            "/v1/get": self._get,
        }

    def __enter__(self) -> CoordinatorServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens; only after :meth:`start`."""
        if self._endpoint is None:
            raise CoordinatorError("the coordinator has not been started")
        return self._endpoint

    def start(self) -> Endpoint:
        """Starts to listen on a free port of ``bind_host`` and returns where; CoordinatorError if that fails."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tfc-coordinator", daemon=True)
        self._thread.start()
        try:
            self._endpoint = self._on_thread(self._listen())
        except OSError as error:
            self.close()
            raise CoordinatorError(f"the coordinator cannot listen on {self._options.bind_host}: {error}") from error
        return self._endpoint

    def close(self) -> None:
        """Ends all waits and the thread; what clients send afterwards finds nobody. A second call does nothing."""
        if self._loop is None or self._thread is None or self._closing:
            return
        self._on_thread(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_THREAD_TIMEOUT_S)
        self._loop.close()

    # ---- for the process that owns the coordinator -----------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it stands."""
        return self._on_thread(self._make_view())

    def exited(self, record: ExitRecord) -> None:
        """As an agent's report: for the end of a process that no agent has reported."""
        self._on_thread(self._record_exit(record))

    def put_blob(self, name: str, data: bytes) -> None:
        """Stores bytes for the tasks; see :meth:`CoordinatorClient.get_blob`."""
        self._on_thread(self._store_blob(name, data))

    def get_blob(self, name: str) -> bytes | None:
        """The bytes that a task has stored, or None."""
        return self._on_thread(self._load_blob(name))

    def _on_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise CoordinatorError("the coordinator does not run")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_THREAD_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise CoordinatorError(f"the coordinator's thread did not answer in {_THREAD_TIMEOUT_S:g} s") from error

    async def _make_view(self) -> JobView:
        membership = self._membership
        return JobView(membership.views, membership.failure, membership.initialised)

    async def _record_exit(self, record: ExitRecord) -> None:
        self._membership.exited(record, self._clock.monotonic())
        self._notify()

    async def _store_blob(self, name: str, data: bytes) -> None:
        for key, value in blobs.encode(name, data):
            self._store.put(key, value)
        self._notify()

    async def _load_blob(self, name: str) -> bytes | None:
        count = self._store.get(blobs.count_key(name))
        if count is None or not isinstance(count.value, int):
            return None
        entries = [self._store.get(blobs.segment_key(name, index)) for index in range(count.value)]
        return b"".join(blobs.decode(entry.value if entry else None) for entry in entries)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> Endpoint:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._serve)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_trouble)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.2, lingering_time=_LINGER_S, logger=self._refusals.as_logger()
        )
        await self._runner.setup()
        self._server = await loop.create_server(self._admit, self._options.bind_host, 0, backlog=_BACKLOG)
        self._expiry = asyncio.create_task(self._expire())
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(str(host), int(port))

    def _admit(self) -> asyncio.Protocol:
        """A connection comes."""
        assert self._runner is not None
        assert self._runner.server is not None
        connection = self._runner.server()
        self._doorkeeper.came(connection)
        return connection

    async def _shut_down(self) -> None:
        self._closing = True
        self._notify()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._server is not None:
            self._server.close()
        self._doorkeeper.close()
        if self._runner is not None:
            await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LINGER_S)

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop itself could not do, for example accept a connection for want of descriptors."""
        del loop
        self._refusals.note(f"{context.get('message')}: {context.get('exception')!r}")

    async def _expire(self) -> None:
        """Does what is due when its time comes; sleeps until then, or until something changes."""
        while not self._closing:
            due = self._next_due()
            now = self._clock.monotonic()
            await _wait(self._changed, None if due == math.inf else max(0.0, due - now))
            if self._clock.monotonic() - max(due, now) > _LATE_S:
                # This process was stopped for a while: first hear what was said meanwhile.
                await asyncio.sleep(_CATCH_UP_S)
            self._expire_round()
            for task in self._membership.find_silent(self._clock.monotonic(), self._options.silence_limit):
                if self._on_silent is not None:
                    self._on_silent(task)

    def _next_due(self) -> float:
        round_ends = self._membership.deadline
        silence = None
        if self._options.silence_limit < math.inf:
            silence = self._membership.next_silence(self._options.silence_limit)
        return min(math.inf if moment is None else moment for moment in (round_ends, silence))

    def _expire_round(self) -> None:
        before = self._membership.failure
        self._membership.expire(self._clock.monotonic())
        if self._membership.failure is not before:
            self._notify()

    def _notify(self) -> None:
        """Wakes every waiting request; each looks whether its own condition holds."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], _T | None], timeout: float) -> _T | None:
        """The first value of ``condition`` that is not None, or None after ``timeout`` seconds or at the end."""
        deadline = self._clock.monotonic() + min(timeout, _MAX_POLL_S)
        while True:
            value = condition()
            remaining = deadline - self._clock.monotonic()
            if value is not None or remaining <= 0 or self._closing:
                return value
            await _wait(self._changed, remaining)

    # ---- one request -----------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.Response:
        try:
            proof = self._verifier.verify(request.method, request.path, request.headers)
            self._doorkeeper.proved(request.protocol)
            body = await asyncio.wait_for(request.read(), self._options.body_timeout)
            proof.check_body(body)
        except Unauthenticated as error:
            return self._refuse(request, 401, str(error))
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, 413, f"a body of more than {MAX_BODY_BYTES} bytes")
        except asyncio.TimeoutError:
            return self._refuse(request, 408, "the body did not come in time")
        except web.RequestPayloadError as error:
            return self._refuse(request, 400, f"a body that cannot be read: {error}")
        status, reply = await self._answer(request, body)
        data = json.dumps(reply).encode()
        headers = {SIGNATURE: self._signer.reply_signature(proof.nonce, status, data)}
        return web.Response(status=status, body=data, headers=headers, content_type="application/json")

    async def _answer(self, request: web.Request, body: bytes) -> tuple[int, _Reply]:
        """Status and reply of a proved request."""
        handler = self._handlers.get(request.path)
        if handler is None or request.method != "POST":
            return 404, {"error": f"there is no {request.method} {request.path}"}
        try:
            return 200, await handler(Body.parse(body))
        except BadRequest as error:
            text = f"refused {request.path} from {request.remote}: {error}"
            self._refusals.note(text)
            return 400, {"error": str(error)}
        except Refusal as error:
            return 409, {"error": str(error)}

    def _refuse(self, request: web.Request, status: int, reason: str) -> web.Response:
        """The answer to somebody who has not proved the key: says nothing, and the connection ends."""
        self._refusals.note(f"refused a request from {request.remote}: {reason}")
        response = web.Response(status=status, text="refused\n")
        response.force_close()
        return response

    async def _join(self, body: Body) -> _Reply:
        join = JoinRequest(
            task=body.task("task"),
            size=body.integer("size"),
            node=body.text("node"),
            pid=body.integer("pid"),
            address=body.text("address"),
        )
        self._membership.join(join, self._clock.monotonic())
        self._notify()
        outcome = await self._until(lambda: self._membership.outcome(join), body.number("timeout"))
        if isinstance(outcome, World):
            return {"world": outcome.to_json()}
        if isinstance(outcome, RendezvousFailure):
            return {"failure": outcome.message, "missing": list(outcome.missing)}
        if self._closing:
            return {"failure": "the job has ended", "missing": []}
        return {"missing": [str(task) for task in self._membership.missing]}

    async def _heartbeat(self, body: Body) -> _Reply:
        now = self._clock.monotonic()
        self._membership.heartbeat(body.task("task"), body.text("activity"), body.mapping("info"), now)
        return {}

    async def _leave(self, body: Body) -> _Reply:
        self._membership.leave(body.task("task"), self._clock.monotonic())
        self._notify()
        return {}

    async def _started(self, body: Body) -> _Reply:
        self._membership.started(body.task("task"), body.text("node"), body.integer("pid"))
        return {}

    async def _exited(self, body: Body) -> _Reply:
        try:
            record = ExitRecord.from_json(body.mapping("record"))
        except ValueError as error:
            raise BadRequest(str(error)) from error
        await self._record_exit(record)
        return {}

    async def _put(self, body: Body) -> _Reply:
        version = self._store.put(body.text("key"), body.value("value"))
        self._notify()
        return {"version": version}

    async def _get(self, body: Body) -> _Reply:
        key, version = body.text("key"), body.integer("version")
        entry = await self._until(lambda: self._store.newer(key, version), body.number("timeout"))
        return _entry_reply(entry)

    async def _status(self, body: Body) -> _Reply:
        del body
        membership, now = self._membership, self._clock.monotonic()
        return {
            "job": self._options.job_id,
            "generation": membership.world.generation if membership.world else 0,
            "failure": membership.failure.message if membership.failure else None,
            "tasks": [_task_reply(view, now) for view in membership.views],
        }


async def _wait(event: asyncio.Event, timeout: float | None) -> None:
    """Returns when the event is set or the time is over."""
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except asyncio.TimeoutError:
        return


def _entry_reply(entry: Entry | None) -> _Reply:
    return {"version": 0} if entry is None else {"version": entry.version, "value": entry.value}


def _task_reply(view: TaskView, now: float) -> _Reply:
    age = None if view.last_heartbeat is None else round(now - view.last_heartbeat, 3)
    return {
        "task": str(view.task),
        "rank": view.rank,
        "state": view.state.value,
        "activity": view.activity,
        "node": view.node,
        "pid": view.pid,
        "heartbeat_age_s": age,
        "info": dict(view.info),
        "exit": view.exit.to_json() if view.exit else None,
    }
