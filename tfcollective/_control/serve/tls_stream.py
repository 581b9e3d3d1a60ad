"""A TLS connection on an event loop, from its first byte to its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from tfcollective._control.wire.protocol import keep_alive

_RECORD_BYTES = 1 << 14


class TlsStream(asyncio.Protocol):
    """Decrypts what comes and encrypts what is sent. Lives on the event loop's thread.

    TLS runs on two buffers in memory. asyncio's own keeps 256 KiB for each connection, takes twice the processor time,
    and shows nothing of a connection before its handshake is over: one that never ends it could not be ended.

    Args:
        context: of this end.
        serve: begins once the handshake is over, as a task of its own.
        on_end: called once when the connection has ended.
        server_side: whether this end is the server.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        serve: Callable[[TlsStream], Awaitable[None]],
        on_end: Callable[[TlsStream], None] = lambda stream: None,
        *,
        server_side: bool = True,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        """None before it is open and after its end."""
        self.peer = "a client"
        """The address of the other end."""
        self.begun = False
        """Whether the other end has sent anything."""
        self.trouble: str | None = None
        """Why this end has refused the connection."""
        self.task: asyncio.Future[None] | None = None
        """Serves it; None before the handshake is over."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._server_side = server_side
        self._serve = serve
        self._on_end = on_end
        self._reader = asyncio.StreamReader()
        self._writable = asyncio.Event()
        self._writable.set()
        self._finished = False

    async def read(self, count: int) -> bytes:
        """The next ``count`` bytes; IncompleteReadError when the connection ends before."""
        return await self._reader.readexactly(count)

    async def send(self, data: bytes) -> None:
        """Sends the bytes; waits while too many are on their way. Nothing once the connection has ended."""
        if self.transport is not None and not self.transport.is_closing():
            self._tls.write(data)
            self._flush()
            await self._writable.wait()

    def finish(self) -> None:
        """Takes no more bytes: what has come is served, then the connection ends."""
        if self.task is None:
            self.close()
        elif not self._finished:
            self._finished = True
            self._reader.feed_eof()

    def close(self) -> None:
        """Ends it once everything is sent. A second call does nothing."""
        if self.transport is not None:
            self.transport.close()

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = str((transport.get_extra_info("peername") or (self.peer,))[0])
        keep_alive(transport.get_extra_info("socket"))
        self._reader.set_transport(transport)
        if not self._server_side:
            self._advance()

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self.begun = True
        if not self._finished:
            self._incoming.write(data)
            self._advance()

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        del exc
        self.transport = None
        self._writable.set()
        if self.task is not None:
            self.finish()
        self._on_end(self)

    # ---- TLS -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Processes the bytes that have arrived."""
        try:
            if self.task is None:
                self._tls.do_handshake()
                self.task = asyncio.ensure_future(self._serve(self))
            while data := self._tls.read(_RECORD_BYTES):
                self._reader.feed_data(data)
            self.finish()  # the other end has said that it sends no more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.trouble = f"TLS failed: {error.reason or error}"
            self.finish()
            self._flush()  # the other end hears why
            self.close()
            return
        self._flush()

    def _flush(self) -> None:
        if self.transport is not None and self._outgoing.pending:
            self.transport.write(self._outgoing.read())
