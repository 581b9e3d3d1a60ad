"""A client's connection to its coordinator: TLS, the greeting, then one request after the other."""

from __future__ import annotations

import functools
import hashlib
import socket
import ssl
from dataclasses import dataclass, field

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import CoordinatorError
from tfcollective._base.settings import variable
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.wire.greeting import Unauthenticated, Welcome
from tfcollective._control.wire.protocol import MAX_BODY_BYTES, REPLY_HEAD, REQUEST_HEAD, keep_alive

_MAX_REPLY_BYTES = 2 * MAX_BODY_BYTES
_RECORD_BYTES = 1 << 14


class CoordinatorUnreachableError(CoordinatorError):
    """Raised when no process answers at the address (yet)."""


class UnprovenReplyError(CoordinatorError):
    """Raised when the process that answers does not hold the job key."""


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator has answered that the request cannot be met: to repeat it changes nothing."""


class InterceptedError(CoordinatorError):
    """Raised when the process that answers is not the coordinator but relays its messages."""


class OtherJobError(CoordinatorError):
    """The coordinator there holds the same key, but is another job's."""


@dataclass(frozen=True)
class Access:
    """The facts that a client needs to reach a coordinator.

    Attributes:
        endpoint: where it listens.
        key: the job key.
        job_id: the name of its job; None: any that has this key.
    """

    endpoint: Endpoint
    key: bytes = field(repr=False)
    job_id: str | None = None


class Connection:
    """Both ends have proved the job key to each other when it is open. Not thread-safe.

    Nothing of a request leaves this process before the certificate is known to be the coordinator's.
    """

    def __init__(self, tls: ssl.SSLSocket, endpoint: Endpoint) -> None:
        self._tls = tls
        self._endpoint = endpoint
        self._received = bytearray()
        self._unsent = b""  # goes with the next request: one piece costs the coordinator one turn of its loop
        self._deadline = Deadline.never()

    @classmethod
    def open(cls, access: Access, timeout: float) -> Connection:
        """Connects, which may take ``timeout`` seconds, TLS and the greeting included.

        Raises:
            OSError: there is no answer.
            UnprovenReplyError, InterceptedError, OtherJobError: it is not this job's coordinator.
            CoordinatorError: it does not speak TLS.
        """
        endpoint, deadline = access.endpoint, Deadline.after(timeout)
        plain = socket.create_connection((endpoint.host, endpoint.port), min(TIMING.connect, timeout))
        try:
            keep_alive(plain)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = cls(_encrypt(plain, endpoint, deadline), endpoint)
        except BaseException:
            plain.close()
            raise
        try:
            connection._greet(access, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def usable(self) -> bool:
        """True if another request can be sent: no reply is outstanding, and this end has not closed it."""
        return self._tls.fileno() >= 0

    def ask(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of the reply, which may take ``timeout`` seconds.

        Raises CoordinatorError for a reply that is too long, OSError when there is none. It is not usable then.
        """
        name = path.encode()
        try:
            self._deadline = Deadline.after(timeout)
            self._send(b"".join((self._unsent, REQUEST_HEAD.pack(len(name), len(body)), name, body)))
            self._unsent = b""
            status, length = REPLY_HEAD.unpack(self._receive(REPLY_HEAD.size))
            if length > _MAX_REPLY_BYTES:
                raise CoordinatorError(
                    f"the answer of the coordinator at {self._endpoint} to {path} is longer than "
                    f"{_MAX_REPLY_BYTES >> 20} MiB, the most that is read"
                )
            return status, self._receive(length)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes it. A second call does nothing."""
        self._tls.close()

    def _greet(self, access: Access, deadline: Deadline) -> None:
        """Raises unless the other end proves that it is the coordinator, and the certificate its own."""
        self._deadline = deadline
        try:
            welcome = Welcome.read(access.key, self._receive)
        except Unauthenticated as error:
            raise UnprovenReplyError(
                f"{self._endpoint} answers, but does not prove the job key: it may be the coordinator of another job. "
                f"Check its address, and that the key ({variable('key_file')}) is the same there"
            ) from error
        _check(welcome, access, _fingerprint(self._tls))
        self._unsent = welcome.client_proof(access.key)

    def _send(self, data: bytes) -> None:
        _limit_wait(self._tls, self._deadline)
        self._tls.sendall(data)

    def _receive(self, count: int) -> bytes:
        """Receives ``count`` bytes. Raises OSError if they do not come in time."""
        while len(self._received) < count:
            _limit_wait(self._tls, self._deadline)
            part = self._tls.recv(_RECORD_BYTES)
            if not part:
                raise ConnectionResetError("the connection has ended")
            self._received += part
        data = bytes(self._received[:count])
        del self._received[:count]
        return data


@functools.lru_cache(maxsize=1)
def client_context() -> ssl.SSLContext:
    """Returns a context that checks no certificate: no authority knows the coordinator's; the greeting proves it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _limit_wait(waits: socket.socket, deadline: Deadline) -> None:
    """Has the next call of a socket end at the deadline."""
    remaining = deadline.remaining()
    if not remaining:
        raise TimeoutError("timed out")
    waits.settimeout(remaining)


def _encrypt(plain: socket.socket, endpoint: Endpoint, deadline: Deadline) -> ssl.SSLSocket:
    _limit_wait(plain, deadline)
    try:
        return client_context().wrap_socket(plain)
    except ssl.SSLEOFError:
        raise  # it has ended
    except ssl.SSLError as error:
        raise CoordinatorError(
            f"{endpoint} does not speak TLS 1.3 ({error.reason}), and nothing was sent to it: check that it is the "
            "coordinator's port, and that nothing in between changes the traffic"
        ) from error


def _fingerprint(tls: ssl.SSLSocket) -> bytes:
    """The SHA-256 of the certificate that the other end shows."""
    return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").digest()


def _check(welcome: Welcome, access: Access, certificate: bytes) -> None:
    if access.job_id is not None and welcome.job_id != access.job_id:
        raise OtherJobError(
            f"{access.endpoint} is the coordinator of the job {welcome.job_id!r}, which has the same key, and this "
            f"process belongs to the job {access.job_id!r}: give each job another address "
            f"({variable('rendezvous')}=HOST:PORT)"
        )
    if welcome.certificate != certificate:
        raise InterceptedError(
            f"something between this host and the coordinator at {access.endpoint} intercepts the connection: the "
            f"certificate shown here has the SHA-256 {certificate.hex()}, the coordinator's has "
            f"{welcome.certificate.hex()}. Nothing was sent. A proxy that inspects TLS has to let this connection "
            "pass; if there is none, it is an attack"
        )
