"""Serves the page of a job, the stream that it follows, and the job's metrics.

Whoever has the token in the URL may read everything; nobody can change anything. A reader that is slow or gone costs
its own connection: the job hands over snapshots and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path

from aiohttp import web

from tfcollective._base.topology import Endpoint
from tfcollective._control.serve.http import HttpServer
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.web.history import JobHistory
from tfcollective._launch.web.log_tail import log_tail
from tfcollective._launch.web.metrics import CONTENT_TYPE, metrics_text

_SILENCE_S = 10.0
_MAX_UNAUTHENTICATED = 64
_MAX_READERS = 32
_EACH_S = 1.0
_SLOW_READER_S = 10.0
_LAST_STATE_S = 3.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WatchServer(HttpServer):
    """Serves one job, through its starts. A context manager.

    Args:
        at: where to listen; port 0: any free one.
        log_dir: where the output of the ranks is kept, or None.
        token: who knows it may read; None: a new one.
    """

    def __init__(self, at: Endpoint, log_dir: str | None, token: str | None = None) -> None:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._page)
        app.router.add_get("/{token}/events", self._events)
        app.router.add_get("/{token}/metrics", self._metrics)
        super().__init__(
            app,
            "the page of --web",
            at.host,
            at.port,
            silence=_SILENCE_S,
            most=_MAX_UNAUTHENTICATED,
            lingering=_LAST_STATE_S,
        )
        self._history = JobHistory()
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._token = token or secrets.token_urlsafe(24)
        self._hosts = {"localhost", at.host, socket.gethostname(), socket.getfqdn()}
        self._log: Sequence[str] | None = None if log_dir is None else ()
        self._ended = asyncio.Event()
        self._readers = 0

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{self.endpoint}/{self._token}/"

    def take(self, job: JobSnapshot) -> None:
        """Takes the newest snapshot of the job, from any thread; does not wait."""
        self.call_soon(self._history.take, job)

    def read_log(self) -> None:
        """Reads the newest output of the ranks, if somebody watches; for a thread of its own: files may hang."""
        if self._log_dir is not None and self._readers:
            with contextlib.suppress(OSError):  # a file was renamed just now
                self._log = log_tail(self._log_dir)

    def end(self, outcome: JobOutcome) -> None:
        """Takes the outcome, from any thread; readers get it before their connections end."""
        self.call_soon(self._history.end, outcome)
        self.call_soon(self._ended.set)

    # ---- who may read ----------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuses whoever does not know the token, and browsers that another site's name has led here."""
        given = request.match_info.get("token", "")
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            raise web.HTTPNotFound(headers=_HEADERS)
        if not self._is_ours(request.host):
            raise web.HTTPForbidden(text="ask for this page by an address of this machine", headers=_HEADERS)
        self.authenticated(request)
        return await handler(request)

    def _is_ours(self, host: str) -> bool:
        """True for an address, or a name of this machine: another name may be one that a site has made to lead here."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name.strip("[]")))
        return name in self._hosts

    # ---- what there is to read -------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        del request
        nonce = secrets.token_urlsafe(16)
        headers = {**_HEADERS, "Content-Security-Policy": _POLICY.format(nonce=nonce)}
        return web.Response(text=_page(nonce), content_type="text/html", charset="utf-8", headers=headers)

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        try:
            text = metrics_text(self._history)
        except ModuleNotFoundError as error:
            advice = f"{error.name} is not installed: pip install 'tfcollective[web]'\n"
            return web.Response(status=501, text=advice, headers=_HEADERS)
        return web.Response(body=text, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Sends the state of the job each second, as server-sent events, and the outcome at the end."""
        if self._readers >= _MAX_READERS:
            raise web.HTTPServiceUnavailable(text="too many pages are open", headers=_HEADERS)
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        self._readers += 1
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await self._send_states(response)
        finally:
            self._readers -= 1
        return response

    async def _send_states(self, response: web.StreamResponse) -> None:
        while True:
            ended = self._ended.is_set()
            text = json.dumps({**self._history.document(), "log": self._log})
            await asyncio.wait_for(response.write(f"data: {text}\n\n".encode()), _SLOW_READER_S)
            if ended:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _EACH_S)


def _page(nonce: str) -> str:
    """The page with all that it needs."""
    files = resources.files(__package__ or "")
    parts = {
        "{{nonce}}": nonce,
        "{{uPlot.css}}": files.joinpath("uPlot.min.css").read_text("utf-8"),
        "{{uPlot.js}}": files.joinpath("uPlot.iife.min.js").read_text("utf-8"),
    }
    text = files.joinpath("page.html").read_text("utf-8")
    for name, part in parts.items():
        text = text.replace(name, part)
    return text
