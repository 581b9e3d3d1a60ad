"""The greeting with which each connection begins: both ends prove that they hold the job key.

    client <- coordinator   a random number, the SHA-256 of its certificate, the name of its job,
                            and HMAC(K, "coordinator", name, number, certificate)
    client -> coordinator   HMAC(K, "client", name, number, certificate)

K is the job key's key for the coordinator of the job with this name. The greeting is the first thing that is said over
TLS. The client compares the certificate with the one that TLS has shown to it: a process between the ends has to show
one of its own, and cannot prove the key for it. So who has proved the key is the other end of the TLS connection, which
protects everything that follows.

A recorded proof is worth nothing. A coordinator's is for its certificate, whose private key never leaves its process
and is gone with it; a client's is for a number that is new on each connection. Clocks do not matter.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tfcollective._base.job_keys import CONTROL, derived_key

PROOF_BYTES = 32
_NUMBER_BYTES = 16
WELCOME = struct.Struct(f">{_NUMBER_BYTES}s{PROOF_BYTES}s32sH")  # the last field is the length of the job's name
_MAX_NAME_BYTES = 4096
_COORDINATOR, _CLIENT = "coordinator", "client"


class Unauthenticated(Exception):  # noqa: N818  an answer, not a fault of this process
    """The other end has not proved that it holds the key; the text says what was wrong."""


@dataclass(frozen=True)
class Welcome:
    """The values for which both ends prove that they hold the key.

    Attributes:
        job_id: the name of the coordinator's job.
        number: random, and new on each connection.
        certificate: the SHA-256 of the coordinator's certificate.
    """

    job_id: str
    number: bytes
    certificate: bytes

    @classmethod
    def new(cls, job_id: str, certificate: bytes) -> Welcome:
        """A coordinator's for a new connection."""
        return cls(job_id, secrets.token_bytes(_NUMBER_BYTES), certificate)

    def to_bytes(self, job_key: bytes) -> bytes:
        """The coordinator's message, which proves the key."""
        name = self.job_id.encode()
        proof = self._proof(job_key, _COORDINATOR)
        return WELCOME.pack(self.number, proof, self.certificate, len(name)) + name

    @classmethod
    def read(cls, job_key: bytes, receive: Callable[[int], bytes]) -> Welcome:
        """Reads what :meth:`to_bytes` wrote; ``receive(count)`` returns the next bytes. Raises Unauthenticated unless
        the key is proved."""
        number, proof, certificate, length = WELCOME.unpack(receive(WELCOME.size))
        if length > _MAX_NAME_BYTES:
            raise Unauthenticated("the answer does not prove the job key")
        welcome = cls(receive(length).decode("utf-8", "replace"), number, certificate)
        if not hmac.compare_digest(proof, welcome._proof(job_key, _COORDINATOR)):
            raise Unauthenticated("the answer does not prove the job key")
        return welcome

    def client_proof(self, job_key: bytes) -> bytes:
        """The client's answer, which proves the key."""
        return self._proof(job_key, _CLIENT)

    def check_client(self, job_key: bytes, proof: bytes) -> None:
        """Raises Unauthenticated unless ``proof`` is the :meth:`client_proof`."""
        if not hmac.compare_digest(proof, self.client_proof(job_key)):
            raise Unauthenticated("wrong key")

    def _proof(self, job_key: bytes, end: str) -> bytes:
        key = derived_key(job_key, CONTROL, self.job_id)
        parts = (end, self.job_id, self.number.hex(), self.certificate.hex())
        return hmac.digest(key, json.dumps(parts).encode(), "sha256")
