"""The coordinator's server: TLS, the greeting and requests, in a thread of its own, before a :class:`JobService`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.codec import encode
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.messages import Put, Refusal, Refused
from tfcollective._control.serve.connection_limiter import UnauthenticatedConnectionLimiter
from tfcollective._control.serve.service import JobService
from tfcollective._control.serve.tls_stream import TlsStream
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._control.state import blobs
from tfcollective._control.state.events import JobEvent
from tfcollective._control.state.job import Job
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.store import Store
from tfcollective._control.wire.certificate import Certificate
from tfcollective._control.wire.greeting import PROOF_BYTES, Unauthenticated, Welcome
from tfcollective._control.wire.protocol import (
    BACKLOG,
    MAX_BODY_BYTES,
    REPLY_HEAD,
    REQUEST_HEAD,
    ReplyStatus,
    ServerOptions,
)
from tfcollective._control.wire.refusals import RefusalLog

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
        limits = options.silence_limit, options.stall_warning
        job = Job(options.job_id, membership, Store(options.max_store_bytes), *limits)
        self._service = JobService(job, clock, on_event)
        self._certificate: Certificate | None = None
        self._streams: dict[TlsStream, bool] = {}  # and whether each has proved the key
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._limiter = UnauthenticatedConnectionLimiter(
            options.proof_timeout,
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
        """The address that it listens on; only after :meth:`start`."""
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

    def snapshot(self) -> JobSnapshot:
        """The job as it stands."""
        return self._on_thread(_call(self._service.snapshot))

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
            raise CoordinatorError("the coordinator is not running")
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        for _ in range(_LOOKS):  # in parts: where this process is stopped meanwhile, one of them ends at once
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return answer.result(TIMING.event_loop / _LOOKS)
        raise CoordinatorError(f"the coordinator's thread did not answer in {TIMING.event_loop:g} s")

    # ---- life ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_trouble)
        try:
            self._certificate = Certificate.make()
        except OSError as error:
            raise CoordinatorError(f"the coordinator cannot make its certificate: {error}") from error
        self._server = await loop.create_server(self._admit, sock=self._options.listen(), backlog=BACKLOG)
        self._time_keeper = asyncio.create_task(self._service.keep_time())
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(str(host), int(port))

    def _admit(self) -> asyncio.Protocol:
        """A connection comes."""
        assert self._certificate is not None
        stream = TlsStream(self._certificate.context, self._serve, self._ended)
        self._streams[stream] = False
        self._limiter.opened(stream)
        return stream

    def _ended(self, stream: TlsStream) -> None:
        """A connection has ended."""
        self._limiter.authenticated(stream)
        proved = self._streams.pop(stream)
        if stream.trouble or (stream.begun and not proved):
            why = stream.trouble or "it ended before it proved the job key: a wrong key, or no process of the job"
            self._refusals.note(f"refused a connection from {stream.peer}: {why}")

    async def _shut_down(self) -> None:
        self._closing = True
        self._service.close()
        if self._time_keeper is not None:
            self._time_keeper.cancel()
        if self._server is not None:
            self._server.close()
        self._limiter.close()
        streams = list(self._streams)
        for stream in streams:
            stream.finish()
        serving = [stream.task for stream in streams if stream.task is not None]
        if serving:
            await asyncio.wait(serving, timeout=TIMING.lingering)
        await asyncio.sleep(0)  # connections end once more
        for stream in list(self._streams):
            if stream.transport is not None:
                stream.transport.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs what the event loop itself could not do, for example accept a connection for want of descriptors."""
        del loop
        self._refusals.note(f"{context.get('message')}: {context.get('exception')!r}")

    # ---- one connection --------------------------------------------------------------------------------------------

    async def _serve(self, stream: TlsStream) -> None:
        """Serves a connection from the end of its handshake until it closes."""
        try:
            await self._greet(stream)
            while True:
                path, body = await self._request(stream)
                status, reply = await self._answer(stream, path, body)
                await stream.send(REPLY_HEAD.pack(status, len(reply)) + reply)
        except asyncio.IncompleteReadError:
            pass  # it has ended
        except Unauthenticated as error:
            stream.trouble = str(error)
        finally:
            stream.close()

    async def _greet(self, stream: TlsStream) -> None:
        """Raises Unauthenticated unless the client proves the key."""
        assert self._certificate is not None
        key = self._options.key
        welcome = Welcome.new(self._options.job_id, self._certificate.fingerprint)
        await stream.send(welcome.to_bytes(key))
        welcome.check_client(key, await stream.read(PROOF_BYTES))
        self._limiter.authenticated(stream)
        self._streams[stream] = True

    async def _request(self, stream: TlsStream) -> tuple[str, bytes]:
        """Path and body of the next request."""
        name, length = REQUEST_HEAD.unpack(await stream.read(REQUEST_HEAD.size))
        if length > MAX_BODY_BYTES:
            raise Unauthenticated(f"a body of {length} bytes; {MAX_BODY_BYTES} are allowed")
        path = (await stream.read(name)).decode("ascii", "replace")
        return path, await stream.read(length)

    async def _answer(self, stream: TlsStream, path: str, body: bytes) -> tuple[ReplyStatus, bytes]:
        """ReplyStatus and body of the reply to a request."""
        if not self._service.serves(path):
            return ReplyStatus.REFUSED, encode(Refused(f"there is no {path}"))
        try:
            return ReplyStatus.OK, await self._service.answer(path, body, lambda: stream.transport is not None)
        except ConfigError as error:
            self._refusals.note(f"refused {path} from {stream.peer}: {error}")
            return ReplyStatus.REFUSED, encode(Refused(str(error)))
        except Refusal as error:
            return ReplyStatus.CONFLICT, encode(Refused(str(error)))
        except Exception as error:  # noqa: BLE001  # whatever it is: without an answer the client would ask again
            _LOG.exception("%s from %s failed", path, stream.peer)
            return ReplyStatus.REFUSED, encode(Refused(f"the coordinator failed: {type(error).__name__}: {error}"))


async def _call(function: Callable[..., _T], *arguments: object) -> _T:
    """The call as work for the loop."""
    return function(*arguments)
