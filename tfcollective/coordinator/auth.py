"""Proof that both ends hold the job key: HMAC-SHA256 over every request and every reply.

A request's signature covers method, path, time, nonce and the digest of its body, all of which stand in its head: who
does not hold the key is known before any of the body is read. A reply's covers the request's nonce, the status and
the body. So a reply belongs to one request, and a request is accepted once: its nonce is remembered for as long as
its time would be accepted. The job key itself is not used; a key for this purpose is derived from it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective.clock import SYSTEM_CLOCK, Clock

__all__ = ["DIGEST", "NONCE", "SIGNATURE", "TIME", "Proof", "Signer", "Unauthenticated", "Verifier", "new_key"]

TIME = "X-Tfcollective-Time"
NONCE = "X-Tfcollective-Nonce"
DIGEST = "X-Tfcollective-Digest"
SIGNATURE = "X-Tfcollective-Signature"

_KEY_BYTES = 32
_NONCE_LENGTH = 32
_WINDOW_S = 300.0  # clocks of one cluster may differ by this much


class Unauthenticated(Exception):  # noqa: N818  an answer, not a fault of ours
    """The other end has not proved that it holds the key; the text says what was wrong."""


def new_key() -> bytes:
    """A fresh random job key."""
    return secrets.token_bytes(_KEY_BYTES)


@dataclass(frozen=True)
class Signer:
    """Signs and checks for one job key; one side of the protocol needs nothing else than this and a clock."""

    _key: bytes

    @classmethod
    def from_job_key(cls, job_key: bytes) -> Signer:
        """Derives the key for control messages."""
        return cls(hmac.new(job_key, b"tfcollective coordinator 1", hashlib.sha256).digest())

    def request_headers(self, method: str, path: str, body: bytes, clock: Clock = SYSTEM_CLOCK) -> dict[str, str]:
        """The headers that prove a request; the nonce in them is new."""
        time, nonce = f"{clock.wall():.3f}", secrets.token_hex(_NONCE_LENGTH // 2)
        digest = hashlib.sha256(body).hexdigest()
        signature = self.request_signature(method, path, time, nonce, digest)
        return {TIME: time, NONCE: nonce, DIGEST: digest, SIGNATURE: signature}

    def request_signature(self, method: str, path: str, time: str, nonce: str, digest: str) -> str:
        """The signature of a request; ``digest`` is the SHA-256 of its body in hexadecimal."""
        return self._sign("request", method, path, time, nonce, digest)

    def reply_signature(self, nonce: str, status: int, body: bytes) -> str:
        """The signature of the reply to the request with this nonce."""
        return self._sign("reply", nonce, str(status), hashlib.sha256(body).hexdigest())

    def check_reply(self, nonce: str, status: int, body: bytes, signature: str) -> None:
        """Raises Unauthenticated unless ``signature`` proves this reply to the request with this nonce."""
        if not _equal(signature, self.reply_signature(nonce, status, body)):
            raise Unauthenticated("the reply does not prove the job key")

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._key, _encoded("\n".join(parts)), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Proof:
    """What a proved head says: the nonce of the request, and the digest that its body must have."""

    nonce: str
    digest: str

    def check_body(self, body: bytes) -> None:
        """Raises Unauthenticated unless this is the body that was signed."""
        if not _equal(self.digest, hashlib.sha256(body).hexdigest()):
            raise Unauthenticated("the body is not the one that was signed")


class Verifier:
    """Accepts each proved request once. Not thread-safe."""

    def __init__(self, signer: Signer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._signer = signer
        self._clock = clock
        self._seen: OrderedDict[str, float] = OrderedDict()  # nonce -> when it was seen, oldest first

    def verify(self, method: str, path: str, headers: Mapping[str, str]) -> Proof:
        """What the head of a proved request says; raises Unauthenticated. Only proved requests use memory."""
        time, nonce, digest = headers.get(TIME, ""), headers.get(NONCE, ""), headers.get(DIGEST, "")
        signature = headers.get(SIGNATURE, "")
        if not signature or len(nonce) != _NONCE_LENGTH:
            raise Unauthenticated("no signature")
        if not _equal(signature, self._signer.request_signature(method, path, time, nonce, digest)):
            raise Unauthenticated("wrong key")
        self._check_time(float(time))  # signed, so our own format
        self._check_nonce(nonce)
        return Proof(nonce, digest)

    def _check_time(self, time: float) -> None:
        difference = time - self._clock.wall()
        if abs(difference) > _WINDOW_S:
            raise Unauthenticated(f"the clocks differ by {difference:.0f} s; {_WINDOW_S:.0f} s are allowed")

    def _check_nonce(self, nonce: str) -> None:
        now = self._clock.monotonic()
        # A request may be signed up to the window in the future, so it stays acceptable for two windows.
        while self._seen and next(iter(self._seen.values())) < now - 2 * _WINDOW_S:
            self._seen.popitem(last=False)
        if nonce in self._seen:
            raise Unauthenticated("the request was replayed")
        self._seen[nonce] = now


def _equal(left: str, right: str) -> bool:
    return hmac.compare_digest(_encoded(left), _encoded(right))


def _encoded(text: str) -> bytes:
    """A stranger's header may hold bytes that are no text; they come as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")
