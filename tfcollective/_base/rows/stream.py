"""Rows on their way from the process that has them to a rank on the same machine: a connection on the loopback, on
which both ends prove a key before anything else, and then pieces whose lengths are checked.

The end with the rows listens. It sends a random number; the reader answers with one of its own and the HMAC-SHA256 of
both; the writer proves the key in the same way. The key is derived from the job key for this one address, so that a
proof is worth nothing elsewhere. A piece is its length, 8 bytes in network order, and so many bytes; one of length 0
ends the rows. No piece is read ahead: a writer waits when its reader is slow.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct

from tfcollective._base.errors import ProtocolError
from tfcollective._base.guarded_listener import BACKLOG, GuardedListener
from tfcollective._base.job_keys import ROWS, derived_key

MAX_PIECE_BYTES = 1 << 30
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_LENGTH = struct.Struct("!Q")
_PROVE_S = 10.0
_LOOPBACK = "127.0.0.1"
_READER, _WRITER = b"reader", b"writer"


class RowWriter:
    """The end that has the rows: listens for the one reader that has the key. A context manager.

    Args:
        job_key: of the job.
    """

    def __init__(self, job_key: bytes) -> None:
        self._listener = socket.create_server((_LOOPBACK, 0), backlog=BACKLOG)
        self.address = f"{_LOOPBACK}:{self._listener.getsockname()[1]}"
        self._key = derived_key(job_key, ROWS, self.address)
        self._reader: socket.socket | None = None

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def accept(self) -> None:
        """Waits for the reader. Others are sent away, however many come. Raises OSError after :meth:`close`."""
        with contextlib.closing(GuardedListener(self._listener, _Guest, timeout=_PROVE_S).answering()) as answering:
            for guest in answering:
                if guest.proves(self._key):
                    self._reader = guest.connection
                    self._reader.setblocking(True)
                    return
                guest.connection.close()

    def send(self, piece: bytes | memoryview) -> None:
        """Sends a piece, and waits for the reader if it is slow. Raises OSError when the reader has closed, or after
        :meth:`close`; ProtocolError when the piece is too long."""
        assert self._reader is not None
        length = len(piece)
        if not 0 < length <= MAX_PIECE_BYTES:
            raise ProtocolError(f"a piece of {length} bytes of rows; at most {MAX_PIECE_BYTES} can be sent at once")
        self._reader.sendall(_LENGTH.pack(length))
        self._reader.sendall(piece)

    def finish(self) -> None:
        """Tells the reader that there are no more rows."""
        assert self._reader is not None
        self._reader.sendall(_LENGTH.pack(0))

    def close(self) -> None:
        """Ends what other threads do with it; may be called again."""
        for one in (self._listener, self._reader):
            if one is not None:
                with contextlib.suppress(OSError):  # the other end closed first
                    one.shutdown(socket.SHUT_RDWR)
                one.close()


class _Guest:
    """A connection whose other end has yet to prove the key."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._mine = secrets.token_bytes(_NONCE_BYTES)
        self._answer = b""
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # its end is what it answers with
            connection.send(self._mine)

    def has_answered(self) -> bool:
        """Reads what has arrived; returns True when there is no more to wait for."""
        wanted = _NONCE_BYTES + _PROOF_BYTES
        try:
            data = self.connection.recv(wanted - len(self._answer))
        except BlockingIOError:
            return False
        except OSError:
            return True
        self._answer += data
        return not data or len(self._answer) == wanted

    def proves(self, key: bytes) -> bool:
        """True if its answer proves the key; it then gets our proof."""
        theirs, proof = self._answer[:_NONCE_BYTES], self._answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, _READER, self._mine, theirs)):
            return False
        try:
            return self.connection.send(_proof(key, _WRITER, theirs, self._mine)) == _PROOF_BYTES
        except OSError:
            return False


class RowReader:
    """The rank's end. A context manager.

    Args:
        address: HOST:PORT of the writer.
        job_key: of the job.

    Raises ProtocolError when what listens there has not the key, OSError when nothing listens.
    """

    def __init__(self, address: str, job_key: bytes) -> None:
        host, _, port = address.rpartition(":")
        key = derived_key(job_key, ROWS, address)
        self._connection = socket.create_connection((host, int(port)), timeout=_PROVE_S)
        try:
            theirs = _receive(self._connection, _NONCE_BYTES)
            mine = secrets.token_bytes(_NONCE_BYTES)
            self._connection.sendall(mine + _proof(key, _READER, theirs, mine))
            proof = _receive(self._connection, _PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(key, _WRITER, mine, theirs)):
                raise ProtocolError(f"what listens at {address} is not this job's source of rows")
            self._connection.settimeout(None)  # a shuffle may take long; the end of the task ends the connection
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def next(self) -> bytes | None:
        """The next piece; None after the last one. Raises ProtocolError when the connection ends before that."""
        (length,) = _LENGTH.unpack(_receive(self._connection, _LENGTH.size))
        if length > MAX_PIECE_BYTES:
            raise ProtocolError(f"a piece of {length} bytes of rows; expected at most {MAX_PIECE_BYTES}")
        return _receive(self._connection, length) if length else None

    def close(self) -> None:
        """Closes the stream; further rows are discarded."""
        self._connection.close()


def _proof(key: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, who + first + second, "sha256")


def _receive(connection: socket.socket, count: int) -> bytes:
    """Returns so many bytes; ProtocolError when the connection ends before they arrive."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ProtocolError("the source of rows has ended before the last one")
        view = view[got:]
    return bytes(data)
