"""HTTP for those who speak nothing else: Horovod's ranks, browsers, Prometheus."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.serve.connection_limiter import UnauthenticatedConnectionLimiter

_LOG = get_logger(__name__)
_BACKLOG = 4096
_LINGERING_S = 0.2
_Self = TypeVar("_Self", bound="HttpServer")


class HttpServer:
    """Serves an application, on a thread of its own, while the context manager is open.

    Args:
        app: the application; it calls :meth:`authenticated` for requests that it takes.
        name: what it is, for errors and the log.
        bind_host: the address to listen on.
        port: the port; 0: any free one.
        silence: how long (s) a connection may last that asks for nothing.
        most: how many of those there may be.
        lingering: how long (s) answers that are under way may take at the end.
    """

    def __init__(
        self,
        app: web.Application,
        name: str,
        bind_host: str,
        port: int = 0,
        *,
        silence: float,
        most: int,
        lingering: float = _LINGERING_S,
    ) -> None:
        self._app = app
        self._name = name
        self._bind = bind_host, port
        self._lingering = lingering
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tfc-http", daemon=True)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._limiter = UnauthenticatedConnectionLimiter(silence, most)
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The address that it listens on; only while it is open."""
        if self._endpoint is None:
            raise CoordinatorError(f"{self._name} has not been started")
        return self._endpoint

    def __enter__(self: _Self) -> _Self:
        self._thread.start()
        try:
            self._endpoint = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(TIMING.event_loop)
        except (OSError, concurrent.futures.TimeoutError) as error:
            self._end()
            raise CoordinatorError(
                f"{self._name} cannot listen on {':'.join(map(str, self._bind))}: {error}"
            ) from error
        _LOG.info("%s listens at %s", self._name, self._endpoint)
        return self

    def __exit__(self, *unused: object) -> None:
        self._end()

    def authenticated(self, request: web.Request) -> None:
        """The connection of this request may stay."""
        self._limiter.authenticated(request.protocol)

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Makes a call on the server's thread, soon; does not wait. Does nothing once it has ended."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(TIMING.event_loop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMING.event_loop)
        self._loop.close()

    async def _listen(self) -> Endpoint:
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=self._lingering)
        await self._runner.setup()
        self._server = await self._loop.create_server(self._open, *self._bind, backlog=_BACKLOG)
        host, port = self._server.sockets[0].getsockname()[:2]
        return Endpoint(str(host), int(port))

    def _open(self) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        connection = self._runner.server()
        self._limiter.opened(connection)
        return connection

    async def _shut_down(self) -> None:
        if self._server is not None:
            self._server.close()
        self._limiter.close()
        if self._runner is not None:
            await self._runner.cleanup()
