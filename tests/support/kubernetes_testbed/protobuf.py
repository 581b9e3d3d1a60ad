"""Secrets as ``kubectl create secret`` sends them: in Kubernetes' protobuf encoding, not as JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from kubernetes_testbed.objects import ApiError, Object

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _BYTES = 0, 2


def secret_of(body: bytes) -> Object:
    """The Secret in the envelope (runtime.Unknown: 1 the type, 2 the object). Raises :class:`ApiError` for others."""
    envelope = dict(_fields(body.removeprefix(_MAGIC)))
    version, kind = (dict(_fields(envelope[1])).get(number, b"").decode() for number in (1, 2))
    if not body.startswith(_MAGIC) or (version, kind) != ("v1", "Secret"):
        raise ApiError(415, "UnsupportedMediaType", f"{version} {kind}: only Secrets are read as {CONTENT_TYPE}")
    data, metadata, sort = {}, {}, ""
    for number, value in _fields(envelope[2]):
        if number == 1:
            metadata["name"] = dict(_fields(value))[1].decode()
        elif number == 2:
            entry = dict(_fields(value))
            data[entry[1].decode()] = base64.b64encode(entry[2]).decode()
        elif number == 3:
            sort = value.decode()
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "data": data, "type": sort}


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and values of a message's fields of bytes; numbers are left out."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == _BYTES:
            length = varint()
            yield number, message[place : place + length]
            place += length
        elif kind == _VARINT:
            varint()
        else:
            raise ApiError(415, "UnsupportedMediaType", f"wire type {kind} is not read")
