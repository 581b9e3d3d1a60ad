"""One connection to a coordinator, from its first byte to its end: with or without TLS, as the client begins it.

Clients use TLS where a connection leaves their host. The coordinator cannot always see which do: a proxy in front of it
may make each connection look local. So it looks at the first byte, which tells a TLS handshake from HTTP.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

from tfcollective._base.timing import TIMING
from tfcollective._control.serve.connection_limiter import abort
from tfcollective._control.wire.auth import ConnectionProof

_TLS_HANDSHAKE = b"\x16"
# How long (s) a connection that is closed waits for the client's own end of TLS. An idle client does not read it, and
# nothing depends on it: each reply has its length and its proof. Python 3.10 waits until the client closes.
_END_OF_TLS: dict[str, Any] = {"ssl_shutdown_timeout": 0.5} if sys.version_info >= (3, 11) else {}


class Door(asyncio.Protocol):
    """Hands what comes to ``http``, decrypted if need be. Lives on the event loop's thread.

    Args:
        http: the protocol that serves the connection.
        tls: the context for connections that begin with a TLS handshake; None: serve plain ones only.
        on_failure: called with the reason when the handshake fails.
        on_end: called once when the connection has ended.
    """

    def __init__(
        self,
        http: asyncio.Protocol,
        tls: ssl.SSLContext | None,
        on_failure: Callable[[str], None],
        on_end: Callable[[Door], None],
    ) -> None:
        self.http = http
        self.transport: asyncio.Transport | None = None
        """None before it is open and after its end."""
        self.encrypted = False
        """Whether it speaks TLS; known once HTTP has begun."""
        self.session: ConnectionProof | None = None
        """What its requests are proved with, after the greeting."""
        self._tls = tls
        self._on_failure = on_failure
        self._on_end = on_end
        self._peek: socket.socket | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._serving = False
        self._early: list[bytes] = []  # what came in one piece with the end of the handshake

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._tls is None:
            self._serve()
        else:
            asyncio.get_running_loop().call_soon(self._look)  # after the transport has begun to read

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._serving:
            self.http.data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool | None:
        """See :class:`asyncio.Protocol`."""
        return self.http.eof_received() if self._serving else None

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self.http.pause_writing()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self.http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._stop_looking()
        if self.transport is None:
            return
        self.transport = None
        self._on_end(self)
        if self._serving:
            self.http.connection_lost(exc)

    # ---- the first byte --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Waits for the first byte without taking it: TLS needs it. The descriptor is a copy, because a transport lets
        no second reader use its own."""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.pause_reading()
        try:
            self._peek = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        except OSError as error:
            self._on_failure(f"cannot look at a connection: {error}")
            abort(self.transport)
            return
        asyncio.get_running_loop().add_reader(self._peek.fileno(), self._first_byte)

    def _first_byte(self) -> None:
        assert self._peek is not None
        assert self.transport is not None
        try:
            first = self._peek.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""  # HTTP sees how it has ended
        self._stop_looking()
        if first == _TLS_HANDSHAKE:
            self._handshake = asyncio.get_running_loop().create_task(self._encrypt())
        else:
            self._serve()
            self.transport.resume_reading()

    def _stop_looking(self) -> None:
        peek, self._peek = self._peek, None
        if peek is not None:
            asyncio.get_running_loop().remove_reader(peek.fileno())
            peek.close()

    async def _encrypt(self) -> None:
        assert self._tls is not None
        transport = self.transport
        if transport is None or transport.is_closing():  # it was ended in the same turn of the loop
            return
        try:
            found = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=TIMING.handshake,
                **_END_OF_TLS,
            )
        except OSError as error:
            peer = transport.get_extra_info("peername")
            why = str(error) or type(error).__name__  # one that has ended meanwhile leaves no text
            self._on_failure(f"a TLS handshake of {peer[0] if peer else 'a client'} failed: {why}")
            self.connection_lost(error)
            return
        if self.transport is None or found is None:  # it was ended meanwhile
            self.connection_lost(None)
            return
        self.transport = found
        self.encrypted = True
        self._serve()

    def _serve(self) -> None:
        assert self.transport is not None
        self._serving = True
        self.http.connection_made(self.transport)
        for data in self._early:
            self.http.data_received(data)
        self._early.clear()
