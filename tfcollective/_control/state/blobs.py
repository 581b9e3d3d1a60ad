"""Bytes as entries of the store: cut into segments, so that no message grows large."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

_SEGMENT_BYTES = 1 << 20


def count_key(name: str) -> str:
    """The key that holds the number of segments; written last, so that a process that sees it finds them all."""
    return f"{name}/segments"


def segment_key(name: str, index: int) -> str:
    """The key of one segment."""
    return f"{name}/{index}"


def encode(name: str, data: bytes) -> Iterator[tuple[str, object]]:
    """The entries to put, in this order."""
    count = 0
    for start in range(0, len(data), _SEGMENT_BYTES):
        yield segment_key(name, count), base64.b64encode(data[start : start + _SEGMENT_BYTES]).decode("ascii")
        count += 1
    yield count_key(name), count


def decode(value: object) -> bytes:
    """The bytes of one segment; ValueError when it is none."""
    if not isinstance(value, str):
        raise ValueError("not a segment")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError("not a segment") from error
