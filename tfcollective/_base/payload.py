"""Pickles user objects (functions, results, objects of collectives), never control messages; nothing else pickles.

Unpickling runs code. Callers hand :func:`loads` only bytes that came over a channel on which both ends have proved
that they hold the job key, or bytes that a :class:`Seal` proves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfcollective._base.errors import InvalidArgumentError

MAX_OBJECT_BYTES = 1 << 38  # larger than any real object; a greater length is refused even with a valid proof
_LENGTH = struct.Struct("!Q")
_DIGEST_BYTES = 32
SEAL_BYTES = _LENGTH.size + 2 * _DIGEST_BYTES


def dumps(value: Any, what: str) -> bytes:
    """``value`` as bytes; InvalidArgumentError that says ``what`` cannot be sent when it cannot be pickled."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling runs the value's own code, which may raise anything
        raise InvalidArgumentError(f"{what} cannot be sent to another process: {error}") from error
    return data


def loads(data: bytes) -> Any:
    """The value that :func:`dumps` made ``data`` of. Raises whatever the value's own code raises."""
    import cloudpickle

    return cloudpickle.loads(data)


@dataclass(frozen=True)
class Seal:
    """The length and digest of bytes still to come, which their sender has proved with the key.

    Attributes:
        length: how many they are, at most :data:`MAX_OBJECT_BYTES`.
        digest: their SHA-256.
    """

    length: int
    digest: bytes

    def fits(self, data: bytes) -> bool:
        """True if these are the bytes."""
        return len(data) == self.length and hmac.compare_digest(hashlib.sha256(data).digest(), self.digest)


def seal(data: bytes, key: bytes, where: Sequence[object]) -> bytes:
    """The :data:`SEAL_BYTES` that are sent before ``data``: length, SHA-256, and the HMAC of both and of ``where``.

    Args:
        data: what will be sent.
        key: derived for this purpose alone.
        where: JSON values that say what the bytes are for and from whom they come: elsewhere the seal proves nothing.

    Raises:
        InvalidArgumentError: more than :data:`MAX_OBJECT_BYTES`.
    """
    if len(data) > MAX_OBJECT_BYTES:
        raise InvalidArgumentError(f"an object of {len(data)} bytes; at most {MAX_OBJECT_BYTES} can be sent at once")
    body = _LENGTH.pack(len(data)) + hashlib.sha256(data).digest()
    return body + _proof(body, key, where)


def open_seal(sent: bytes, key: bytes, where: Sequence[object]) -> Seal | None:
    """Reverses :func:`seal` with the same key and ``where``; None if the proof is wrong."""
    body, proof = sent[:-_DIGEST_BYTES], sent[-_DIGEST_BYTES:]
    if len(sent) != SEAL_BYTES or not hmac.compare_digest(proof, _proof(body, key, where)):
        return None
    (length,) = _LENGTH.unpack_from(body)
    return Seal(length, body[_LENGTH.size :]) if length <= MAX_OBJECT_BYTES else None


def _proof(body: bytes, key: bytes, where: Sequence[object]) -> bytes:
    return hmac.digest(key, body + json.dumps(list(where)).encode(), "sha256")
