"""One connection of a client to its coordinator: TLS where it leaves the host, the greeting, then proved requests."""

from __future__ import annotations

import functools
import hashlib
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.settings import variable
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, is_loopback
from tfcollective._control.wire.auth import (
    NONCE,
    SIGNATURE,
    ConnectionProof,
    Unauthenticated,
    Welcome,
    hello_headers,
)
from tfcollective._control.wire.protocol import ENCRYPTED_ONLY, HELLO_PATH, MAX_BODY_BYTES

_OK = 200


class CoordinatorUnreachableError(CoordinatorError):
    """No process answers there (yet)."""


_MAX_REPLY_BYTES = 2 * MAX_BODY_BYTES


class UnprovenReplyError(CoordinatorError):
    """What answers there does not hold the job key."""


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator has answered that the request cannot be met: to repeat it changes nothing."""


class InterceptedError(CoordinatorError):
    """What answers there is not the coordinator, but something that passes its words on."""


class OtherJobError(CoordinatorError):
    """The coordinator there holds the same key, but is another job's."""


@dataclass(frozen=True)
class Access:
    """What a client has to know of a coordinator.

    Attributes:
        endpoint: where it listens.
        key: the job key.
        job_id: the name of its job; None: any that has this key.
        encryption: the setting.
    """

    endpoint: Endpoint
    key: bytes = field(repr=False)
    job_id: str | None = None
    encryption: str = "auto"


class _Http(http.client.HTTPConnection):
    """Sends head and body of a request in one piece: two would cost the other end two turns of its loop."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        super().__init__(endpoint.host, endpoint.port, timeout=timeout)
        self.auto_open = 0  # never by itself: what it would open is neither encrypted nor proved
        self._pieces: list[bytes] = []

    def send(self, data: Any) -> None:
        """See :class:`http.client.HTTPConnection`; what is sent leaves with the end of :meth:`post`."""
        self._pieces.append(data)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The head of the answer to a request."""
        self._pieces.clear()
        self.request("POST", path, body, headers)
        super().send(b"".join(self._pieces))
        return self.getresponse()


class Connection:
    """Both ends have proved the job key to each other when it is open. Not thread-safe.

    Nothing of a request leaves this process before that, and before the certificate, if there is one, is known to be
    the coordinator's.
    """

    def __init__(self, http: _Http, session: ConnectionProof, endpoint: Endpoint) -> None:
        self._http = http
        self._session = session
        self._endpoint = endpoint

    @classmethod
    def open(cls, access: Access, timeout: float) -> Connection:
        """Connects; each step may take ``timeout`` seconds.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
            UnprovenReplyError, InterceptedError, OtherJobError: it is not this job's coordinator.
            CoordinatorError: one of the ends does not encrypt what the other wants encrypted.
        """
        endpoint = access.endpoint
        connection = _Http(endpoint, min(TIMING.connect, timeout))
        try:
            connection.connect()
            connection.sock.settimeout(timeout)
            certificate = _encrypt(connection, access) if _is_to_encrypt(connection, access) else ""
            return cls(connection, _greet(connection, access, certificate), endpoint)
        except BaseException:
            connection.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: no reply is outstanding, and neither end has closed it."""
        return self._http.sock is not None

    def ask(self, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of the proved reply, which may take ``timeout`` seconds.

        Raises UnprovenReplyError; CoordinatorError for a reply that is too long; OSError or http.client.HTTPException
        when there is no reply. It is not usable then.
        """
        headers = {**self._session.request_headers("POST", path, body), "Content-Type": "application/json"}
        done = False
        try:
            self._http.sock.settimeout(timeout)
            response = self._http.post(path, body, headers)
            reply = response.read(_MAX_REPLY_BYTES)
            if len(reply) == _MAX_REPLY_BYTES:
                raise CoordinatorError(
                    f"the answer of the coordinator at {self._endpoint} to {path} is longer than "
                    f"{_MAX_REPLY_BYTES >> 20} MiB, the most that is read"
                )
            self._session.check_reply(response.status, reply, response.headers.get(SIGNATURE, ""))
            done = response.isclosed()
        except Unauthenticated as error:
            raise _unproven(self._endpoint, response.status, error) from error
        finally:
            if not done:
                self.close()
        return response.status, reply

    def close(self) -> None:
        """Closes it. A second call does nothing."""
        self._http.close()


def _is_to_encrypt(connection: _Http, access: Access) -> bool:
    peer = str(connection.sock.getpeername()[0])
    return access.encryption == "on" or (access.encryption == "auto" and not is_loopback(peer))


@functools.lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    """No authority knows a coordinator's certificate: the greeting proves it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _encrypt(connection: _Http, access: Access) -> str:
    """Begins TLS; returns the SHA-256 of the certificate that the other end shows."""
    try:
        encrypted = _context().wrap_socket(connection.sock)
    except ssl.SSLEOFError:
        raise  # it has ended
    except ssl.SSLError as error:
        raise CoordinatorError(
            f"{access.endpoint} does not speak TLS 1.3 ({error.reason}), and nothing was sent to it: check that it is "
            f"the coordinator's port, that nothing in between changes the traffic, and that {variable('encryption')} "
            f"is {access.encryption} there, too"
        ) from error
    connection.sock = encrypted
    return hashlib.sha256(encrypted.getpeercert(binary_form=True) or b"").hexdigest()


def _greet(connection: _Http, access: Access, certificate: str) -> ConnectionProof:
    """The session, when the other end has proved that it is the coordinator and that ``certificate`` is its own."""
    headers = hello_headers(access.key)
    response = connection.post(HELLO_PATH, b"", headers)
    body = response.read(MAX_BODY_BYTES)
    if response.status == ENCRYPTED_ONLY:
        raise CoordinatorError(
            f"the coordinator at {access.endpoint} takes encrypted connections only from other hosts: "
            f"{variable('encryption')} has to be the same there and here, where it is {access.encryption}"
        )
    try:
        if response.status != _OK:
            raise Unauthenticated("the reply does not prove the job key")
        welcome = Welcome.from_reply(access.key, headers[NONCE], body, response.headers.get(SIGNATURE, ""))
    except Unauthenticated as error:
        raise _unproven(access.endpoint, response.status, error) from error
    _check(welcome, access, certificate)
    return welcome.session(access.key)


def _check(welcome: Welcome, access: Access, certificate: str) -> None:
    if access.job_id is not None and welcome.job_id != access.job_id:
        raise OtherJobError(
            f"{access.endpoint} is the coordinator of the job {welcome.job_id!r}, which has the same key, and this "
            f"process belongs to the job {access.job_id!r}: give each job another address "
            f"({variable('rendezvous')}=HOST:PORT)"
        )
    if welcome.certificate != certificate:
        raise InterceptedError(
            f"something between this host and the coordinator at {access.endpoint} intercepts the connection: the "
            f"certificate shown here has the SHA-256 {certificate or '(none)'}, the coordinator's has "
            f"{welcome.certificate or '(none)'}. Nothing was sent. A proxy that inspects TLS has to let this "
            "connection pass; if there is none, it is an attack"
        )


def _unproven(endpoint: Endpoint, status: int, error: Unauthenticated) -> UnprovenReplyError:
    return UnprovenReplyError(
        f"{endpoint} answered with status {status}, but {error}: is it another job's coordinator?"
    )
