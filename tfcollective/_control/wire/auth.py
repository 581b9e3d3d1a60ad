"""Proof that both ends hold the job key: HMAC-SHA256 over the beginning of every connection, every request and reply.

A connection begins with a greeting. The client sends a random number and proves the job key. The coordinator answers
with a random number of its own, the name of its job and the SHA-256 of the certificate that it shows on this
connection (none without TLS), and proves the key for that job over all of it. From these values both derive the key of
the connection's session, which signs each request and each reply together with its number.

So a proof belongs to one connection of one coordinator of one job: recorded messages cannot be used again, not even
with a coordinator that was started again with the same key, and clocks do not matter. A process between the ends that
shows a certificate of its own cannot prove that it is the coordinator's.

A request's signature covers method, path and the digest of its body, all of which stand in its head: a request without
the key is refused before any of its body is read.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective._base.job_keys import CONTROL, HELLO, derived_key

NONCE = "X-Tfcollective-Nonce"
DIGEST = "X-Tfcollective-Digest"
SIGNATURE = "X-Tfcollective-Signature"

_NONCE_BYTES = 16


class Unauthenticated(Exception):  # noqa: N818  an answer, not a fault of this process
    """The other end has not proved that it holds the key; the text says what was wrong."""


# ---- the greeting ----------------------------------------------------------------------------------------------------


def hello_headers(job_key: bytes) -> dict[str, str]:
    """The headers with which a client begins a connection; the nonce in them is new."""
    nonce = secrets.token_hex(_NONCE_BYTES)
    return {NONCE: nonce, SIGNATURE: _hello(job_key, nonce)}


def check_hello(job_key: bytes, headers: Mapping[str, str]) -> str:
    """The client's nonce; raises Unauthenticated unless the client holds the job key.

    It may be a copy of an earlier hello: only a request of the session proves that the client is there now.
    """
    nonce, signature = headers.get(NONCE, ""), headers.get(SIGNATURE, "")
    if not signature or len(nonce) != 2 * _NONCE_BYTES:
        raise Unauthenticated("no signature")
    if not _equal(signature, _hello(job_key, nonce)):
        raise Unauthenticated("wrong key")
    return nonce


def _hello(job_key: bytes, nonce: str) -> str:
    return _sign(derived_key(job_key, HELLO), "hello", nonce)


@dataclass(frozen=True)
class Welcome:
    """The coordinator's answer to a hello, to which the connection is bound.

    Attributes:
        job_id: the name of its job.
        client_nonce: the client's random number.
        server_nonce: its own.
        certificate: the SHA-256, in hexadecimal, of the certificate that it shows on this connection; empty: no TLS.
    """

    job_id: str
    client_nonce: str
    server_nonce: str
    certificate: str

    @classmethod
    def answering(cls, job_id: str, client_nonce: str, certificate: str) -> Welcome:
        """The answer to the hello with this nonce, with a new nonce of the coordinator's."""
        return cls(job_id, client_nonce, secrets.token_hex(_NONCE_BYTES), certificate)

    def to_body(self) -> bytes:
        """What the client does not know, as JSON."""
        return json.dumps([self.job_id, self.server_nonce, self.certificate]).encode()

    @classmethod
    def from_reply(cls, job_key: bytes, client_nonce: str, body: bytes, signature: str) -> Welcome:
        """Reads what :meth:`to_body` wrote; Unauthenticated unless ``signature`` is its :meth:`proof`."""
        try:
            job_id, server_nonce, certificate = json.loads(body)
        except (ValueError, TypeError, RecursionError) as error:
            raise Unauthenticated("the reply does not prove the job key") from error
        welcome = cls(str(job_id), client_nonce, str(server_nonce), str(certificate))
        if not _equal(signature, welcome.proof(job_key)):
            raise Unauthenticated("the reply does not prove the job key")
        return welcome

    def proof(self, job_key: bytes) -> str:
        """The coordinator's signature."""
        return self._sign(job_key, "welcome")

    def session(self, job_key: bytes) -> ConnectionProof:
        """The session of the connection, at its beginning."""
        return ConnectionProof(bytes.fromhex(self._sign(job_key, "session")))

    def _sign(self, job_key: bytes, what: str) -> str:
        key = derived_key(job_key, CONTROL, self.job_id)
        return _sign(key, what, self.job_id, self.client_nonce, self.server_nonce, self.certificate)


# ---- requests and replies --------------------------------------------------------------------------------------------


class ConnectionProof:
    """The proofs of one connection, on which requests follow each other; either end has its own. Not thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0  # of the newest proved request

    def request_headers(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """For the client: the headers that prove the next request."""
        self._number += 1
        digest = hashlib.sha256(body).hexdigest()
        return {DIGEST: digest, SIGNATURE: self._request(self._number, method, path, digest)}

    def check_head(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        """For the coordinator: the digest that the body of this request must have; Unauthenticated unless the head
        proves that it is the next one."""
        digest, signature = headers.get(DIGEST, ""), headers.get(SIGNATURE, "")
        if not _equal(signature, self._request(self._number + 1, method, path, digest)):
            raise Unauthenticated("the request does not belong to the connection")
        self._number += 1
        return digest

    def reply_signature(self, status: int, body: bytes) -> str:
        """For the coordinator: the signature of the reply to the newest request."""
        return _sign(self._key, "reply", str(self._number), str(status), _reply_digest(body))

    def check_reply(self, status: int, body: bytes, signature: str) -> None:
        """For the client: raises Unauthenticated unless ``signature`` proves this reply to the newest request."""
        if not _equal(signature, self.reply_signature(status, body)):
            raise Unauthenticated("the reply does not prove the job key")

    def _request(self, number: int, method: str, path: str, digest: str) -> str:
        return _sign(self._key, "request", str(number), method, path, digest)


def check_body(digest: str, body: bytes) -> None:
    """Raises Unauthenticated unless this is the body that was signed."""
    if not _equal(digest, hashlib.sha256(body).hexdigest()):
        raise Unauthenticated("the body is not the one that was signed")


def _sign(key: bytes, *parts: str) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


@functools.lru_cache(maxsize=4)
def _reply_digest(body: bytes) -> str:
    """Many replies are the same: none has something to say, or all ranks get the same world."""
    return hashlib.sha256(body).hexdigest()


def _equal(left: str, right: str) -> bool:
    # A header may hold bytes that are no text; they come as lone surrogates.
    return hmac.compare_digest(left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))
