"""The coordinator's server: authenticated HTTP/1.1 with JSON, in a thread of its own, before a :class:`JobService`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.codec import encode
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.settings import variable
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, is_loopback
from tfcollective._control.messages import Put, Refusal, Refused
from tfcollective._control.serve.connection_limiter import UnauthenticatedConnectionLimiter, abort
from tfcollective._control.serve.door import Door
from tfcollective._control.serve.service import JobService
from tfcollective._control.state import blobs
from tfcollective._control.state.events import JobEvent
from tfcollective._control.state.job import Job, JobView
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.store import Store
from tfcollective._control.wire.auth import SIGNATURE, Unauthenticated, Welcome, check_body, check_hello
from tfcollective._control.wire.protocol import BACKLOG, ENCRYPTED_ONLY, HELLO_PATH, MAX_BODY_BYTES, ServerOptions
from tfcollective._control.wire.refusals import RefusalLog

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

    from tfcollective._control.wire.certificate import Certificate

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_MAX_UNAUTHENTICATED = 128
_LOOKS = 10
_CONNECTIONS_PER_TASK = 2  # its rank's and its agent's: in a large job all come at once


class CoordinatorServer:
    """Serves one job. ``start()`` and ``close()`` may be called from any thread; the class is a context manager.

    ``on_event`` is called with each :class:`JobEvent`, once and in order, on the coordinator's thread: it must not
    block.
    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock = SYSTEM_CLOCK,
        on_event: Callable[[JobEvent], None] = lambda event: None,
    ) -> None:
        self._options = options
        membership = Membership(
            options.tasks,
            options.start_timeout,
            options.auxiliary_tasks,
            options.first_generation,
            bounds=options.bounds,
        )
        job = Job(options.job_id, membership, Store(options.max_store_bytes), options.silence_limit)
        self._service = JobService(job, clock, on_event)
        self._certificate: Certificate | None = None
        self._doors: dict[asyncio.BaseProtocol, Door] = {}  # by the protocol that serves the connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._http: web.Server | None = None
        self._server: asyncio.Server | None = None
        self._limiter = UnauthenticatedConnectionLimiter(
            options.body_timeout,
            _MAX_UNAUTHENTICATED + _CONNECTIONS_PER_TASK * (len(options.tasks) + len(options.auxiliary_tasks)),
        )
        self._time_keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._endpoint: Endpoint | None = None
        self._refusals = RefusalLog(_LOG, clock)

    def __enter__(self) -> CoordinatorServer:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
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
        except CoordinatorError:
            self.close()
            raise
        return self._endpoint

    def close(self) -> None:
        """Ends all waits and the thread; what clients send afterwards is not answered. A second call does nothing."""
        if self._loop is None or self._thread is None or self._closing:
            return
        self._on_thread(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMING.event_loop)
        self._loop.close()

    # ---- for the process that owns the coordinator -----------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it stands."""
        return self._on_thread(_call(self._service.view))

    def apply(self, event: object) -> Any:
        """Has an event happen to the job, as if a client had said so; returns the reply."""
        return self._on_thread(_call(self._service.apply, event))

    def put_blob(self, name: str, data: bytes) -> None:
        """Stores bytes for the tasks; see :meth:`CoordinatorClient.get_blob`."""
        for key, value in blobs.encode(name, data):  # one by one: the tasks' requests are served in between
            self._on_thread(_call(self._service.apply, Put(key, value)))

    def get_blob(self, name: str) -> bytes | None:
        """The bytes that a task has stored, or None."""
        segments = self._on_thread(_call(self._service.segments, name))
        return None if segments is None else b"".join(blobs.decode(segment) for segment in segments)

    def _on_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise CoordinatorError("the coordinator does not run")
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        for _ in range(_LOOKS):  # in parts: where this process is stopped meanwhile, one of them ends at once
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return answer.result(TIMING.event_loop / _LOOKS)
        raise CoordinatorError(f"the coordinator's thread did not answer in {TIMING.event_loop:g} s")

    # ---- life ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_trouble)
        # No application: there is one route, and each request would pay for the search.
        self._http = web.Server(
            self._serve,
            request_factory=partial(_request, loop),
            access_log=None,
            lingering_time=TIMING.lingering,
            logger=self._refusals.as_logger(),
        )
        self._certificate = _certificate_for(self._options)
        self._server = await loop.create_server(self._admit, sock=self._options.listen(), backlog=BACKLOG)
        self._time_keeper = asyncio.create_task(self._service.keep_time())
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(str(host), int(port))

    def _admit(self) -> asyncio.Protocol:
        """A connection comes."""
        assert self._http is not None
        http = self._http()
        tls = None if self._certificate is None else self._certificate.context
        door = Door(http, tls, self._refusals.note, self._ended)
        self._doors[http] = door
        self._limiter.opened(door)
        return door

    def _ended(self, door: Door) -> None:
        """A connection has ended."""
        self._limiter.authenticated(door)
        del self._doors[door.http]

    async def _shut_down(self) -> None:
        self._closing = True
        self._service.close()
        if self._time_keeper is not None:
            self._time_keeper.cancel()
        if self._server is not None:
            self._server.close()
        self._limiter.close()
        if self._http is not None:
            await asyncio.sleep(0)  # requests that have come are being answered, not dropped, after this
            self._http.pre_shutdown()
            await self._http.shutdown(TIMING.last_requests)
        for door in list(self._doors.values()):  # those that HTTP has not begun to serve
            abort(door.transport)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=TIMING.lingering)

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop itself could not do, for example accept a connection for want of descriptors."""
        del loop
        self._refusals.note(f"{context.get('message')}: {context.get('exception')!r}")

    # ---- one request -----------------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        try:
            door = self._doors.get(request.protocol)
            if door is None:
                raise Unauthenticated("the connection has ended")
            if request.path == HELLO_PATH:
                return self._greet(request, door)
            if door.session is None:
                raise Unauthenticated("no greeting")
            digest = door.session.check_head(request.method, request.path, request.headers)
            self._limiter.authenticated(door)
            body = await self._body(request)
            check_body(digest, body)
        except Unauthenticated as error:
            return self._refuse(request, 401, str(error))
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, 413, f"a body of more than {MAX_BODY_BYTES} bytes")
        except asyncio.TimeoutError:
            return self._refuse(request, 408, "the body did not come in time")
        except web.RequestPayloadError as error:
            return self._refuse(request, 400, f"a body that cannot be read: {error}")
        status, data = await self._answer(request, body)
        headers = {SIGNATURE: door.session.reply_signature(status, data)}
        return web.Response(status=status, body=data, headers=headers, content_type="application/json")

    async def _body(self, request: web.BaseRequest) -> bytes:
        """The body, which has come with the head as a rule: then it needs neither a task nor a limit of time."""
        if request.content.is_eof():
            body: bytes = request.content.read_nowait()
            if len(body) > MAX_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(body))
            return body
        return await asyncio.wait_for(request.read(), self._options.body_timeout)

    def _greet(self, request: web.BaseRequest, door: Door) -> web.Response:
        """The beginning of a connection. Raises Unauthenticated."""
        if door.session is not None:
            raise Unauthenticated("a second greeting")
        nonce = check_hello(self._options.key, request.headers)
        if not door.encrypted and not self._may_be_plain(request):
            return self._refuse(request, ENCRYPTED_ONLY, "the connection is not encrypted")
        shown = self._certificate.fingerprint if door.encrypted and self._certificate is not None else ""
        welcome = Welcome.answering(self._options.job_id, nonce, shown)
        door.session = welcome.session(self._options.key)
        headers = {SIGNATURE: welcome.proof(self._options.key)}
        return web.Response(body=welcome.to_body(), headers=headers, content_type="application/json")

    def _may_be_plain(self, request: web.BaseRequest) -> bool:
        """Whether a connection needs no encryption; a peer that cannot be seen any more needs it."""
        encryption = self._options.encryption
        return encryption == "off" or (encryption == "auto" and is_loopback(request.remote or ""))

    async def _answer(self, request: web.BaseRequest, body: bytes) -> tuple[int, bytes]:
        """Status and body of the reply to a proved request."""
        if request.method != "POST" or not self._service.serves(request.path):
            return 404, encode(Refused(f"there is no {request.method} {request.path}"))
        try:
            return 200, await self._service.answer(request.path, body, lambda: request.transport is not None)
        except ConfigError as error:
            self._refusals.note(f"refused {request.path} from {request.remote}: {error}")
            return 400, encode(Refused(str(error)))
        except Refusal as error:
            return 409, encode(Refused(str(error)))

    def _refuse(self, request: web.BaseRequest, status: int, reason: str) -> web.Response:
        """The answer to a client that has not proved the key: says nothing, and the connection ends."""
        self._refusals.note(f"refused a request from {request.remote}: {reason}")
        response = web.Response(status=status, text="refused\n")
        response.force_close()
        return response


def _request(
    loop: asyncio.AbstractEventLoop,
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request with the limit of a body."""
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


def _certificate_for(options: ServerOptions) -> Certificate | None:
    """The certificate of a coordinator that other hosts may reach; a setting of ``off`` does not need one. Raises
    CoordinatorError when it cannot be made."""
    if options.encryption != "on" and is_loopback(options.bind_host):
        return None
    try:
        from tfcollective._control.wire.certificate import Certificate  # not sooner: it takes a moment
    except ImportError as error:
        if options.encryption == "off":
            return None
        raise CoordinatorError(
            f"connections to the coordinator cannot be encrypted: {error}. Install the package cryptography; in a "
            f"network where you trust all hosts, {variable('encryption')}=off on all of them does without"
        ) from error
    return Certificate.make()


async def _call(function: Callable[..., _T], *arguments: object) -> _T:
    """The call as work for the loop."""
    return function(*arguments)
