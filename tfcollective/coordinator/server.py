"""The coordinator's server: authenticated HTTP/1.1 with JSON, in a thread of its own, before a :class:`JobService`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web

from tfcollective.clock import SYSTEM_CLOCK, Clock
from tfcollective.coordinator import blobs
from tfcollective.coordinator.auth import SIGNATURE, Signer, Unauthenticated, Verifier
from tfcollective.coordinator.doorkeeper import Doorkeeper
from tfcollective.coordinator.protocol import MAX_BODY_BYTES
from tfcollective.coordinator.refusals import RefusalLog
from tfcollective.coordinator.requests import BadRequest, Body
from tfcollective.coordinator.service import JobService, JobView, Reply
from tfcollective.coordinator.state import Membership, Refusal
from tfcollective.coordinator.store import Store
from tfcollective.errors import CoordinatorError
from tfcollective.failures import ExitRecord
from tfcollective.log import get_logger
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint

__all__ = ["CoordinatorServer", "ServerOptions"]

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_LINGER_S = 1.0
_THREAD_TIMEOUT_S = 10.0
_MAX_STRANGERS = 128
_CONNECTIONS_PER_TASK = 2  # its rank's and its agent's: in a large job all come at once
_BACKLOG = 4096


@dataclass(frozen=True)
class ServerOptions:
    """What a coordinator is for.

    Attributes:
        job_id: the name of the job.
        key: the job key.
        tasks: the tasks that form the world.
        start_timeout: how long (s) the tasks may wait for each other, from the first one's join on.
        bind_host: the address of the interface to listen on.
        bind_port: the port; 0: any free one.
        silence_limit: after how long (s) without a heartbeat a member of the world counts as silent.
        body_timeout: how long (s) a client may take to prove the key, and then to send a request's body.
        max_store_bytes: the size of all values together.
        side_tasks: the tasks outside the world.
        first_generation: the number of the first world; a job that is started again counts on.
    """

    job_id: str
    key: bytes
    tasks: Sequence[TaskKey]
    start_timeout: float
    bind_host: str = "127.0.0.1"
    bind_port: int = 0
    silence_limit: float = math.inf
    body_timeout: float = 10.0
    max_store_bytes: int = 1 << 30
    side_tasks: Sequence[TaskKey] = ()
    first_generation: int = 1


class CoordinatorServer:
    """Serves one job. ``start()`` and ``close()`` may be called from any thread; the class is a context manager.

    ``on_silent`` is called once for a task that has become silent, ``on_trained`` once when rank 0's process has ended;
    both on the coordinator's thread: they must not block.
    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock = SYSTEM_CLOCK,
        on_silent: Callable[[TaskKey], None] | None = None,
        on_trained: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        membership = Membership(options.tasks, options.start_timeout, options.side_tasks, options.first_generation)
        store = Store(options.max_store_bytes)
        self._service = JobService(
            options.job_id, membership, store, clock, options.silence_limit, on_silent, on_trained
        )
        self._signer = Signer.from_job_key(options.key)
        self._verifier = Verifier(self._signer, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._doorkeeper = Doorkeeper(
            options.body_timeout,
            _MAX_STRANGERS + _CONNECTIONS_PER_TASK * (len(options.tasks) + len(options.side_tasks)),
        )
        self._time_keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._endpoint: Endpoint | None = None
        self._refusals = RefusalLog(_LOG, clock)

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
        """Starts to listen and returns where; CoordinatorError if that fails."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tfc-coordinator", daemon=True)
        self._thread.start()
        try:
            self._endpoint = self._on_thread(self._listen())
        except OSError as error:
            self.close()
            at = f"{self._options.bind_host}, port {self._options.bind_port or '(any)'}"
            raise CoordinatorError(f"the coordinator cannot listen on {at}: {error}") from error
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
        return self._on_thread(_call(self._service.view))

    def exited(self, record: ExitRecord) -> None:
        """As an agent's report: for the end of a process that no agent has reported."""
        self._on_thread(_call(self._service.exited, record))

    def put_blob(self, name: str, data: bytes) -> None:
        """Stores bytes for the tasks; see :meth:`CoordinatorClient.get_blob`."""
        for key, value in blobs.encode(name, data):  # one by one: the tasks' requests are served in between
            self._on_thread(_call(self._service.put, key, value))

    def get_blob(self, name: str) -> bytes | None:
        """The bytes that a task has stored, or None."""
        segments = self._on_thread(_call(self._service.segments, name))
        return None if segments is None else b"".join(blobs.decode(segment) for segment in segments)

    def _on_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise CoordinatorError("the coordinator does not run")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_THREAD_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise CoordinatorError(f"the coordinator's thread did not answer in {_THREAD_TIMEOUT_S:g} s") from error

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
        self._server = await loop.create_server(
            self._admit, self._options.bind_host, self._options.bind_port, backlog=_BACKLOG
        )
        self._time_keeper = asyncio.create_task(self._service.keep_time())
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
        self._service.close()
        if self._time_keeper is not None:
            self._time_keeper.cancel()
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

    async def _answer(self, request: web.Request, body: bytes) -> tuple[int, Reply]:
        """Status and reply of a proved request."""
        handler = self._service.handler(request.path)
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


async def _call(function: Callable[..., _T], *arguments: object) -> _T:
    """The call as work for the loop."""
    return function(*arguments)
