"""Values as JSON and back: the one form in which dataclasses travel between processes and through files.

Types are checked on the way in, field by field, so that code which holds a decoded value never meets a text where a
number was due. Tuples travel as lists, bytes as base64, enums as their values; a field with a default may be missing,
and one that the class does not know is ignored. Limits on the size of the data are the caller's: they are to be
checked before this module sees any of it.
"""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any, TypeVar

import msgspec

from tfcollective._base.errors import ConfigError

_T = TypeVar("_T")
#: A number of 0 or more.
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_lock = threading.Lock()
_prepared: set[object] = set()


def encode(value: object) -> bytes:
    """``value`` as JSON text, in ASCII; TypeError when it holds what JSON cannot express.

    The text is :mod:`json`'s: unlike msgspec's own, it keeps infinite numbers and file names that are not UTF-8.
    """
    return json.dumps(to_document(value)).encode()


def encode_line(value: object) -> bytes:
    """The same as one line."""
    return encode(value) + b"\n"


def decode(data: bytes | str, kind: type[_T], what: str) -> _T:
    """The ``kind`` that :func:`encode` has written.

    Raises:
        ConfigError: it is something else; the text begins with ``what`` and names the field that is wrong.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} cannot be read: it is not JSON: {error}") from error
    return from_document(document, kind, what)


def to_document(value: object) -> Any:
    """``value`` as :func:`json.dumps` takes it."""
    return msgspec.to_builtins(value)


def from_document(document: object, kind: type[_T], what: str) -> _T:
    """The ``kind`` that :func:`to_document` has made into ``document``; ConfigError as for :func:`decode`."""
    _prepare(kind)
    try:
        return msgspec.convert(document, kind)
    except (ValueError, RecursionError) as error:  # msgspec's errors, with what a class's own checks raise among them
        raise ConfigError(f"{what} cannot be read: {error}") from error


def _prepare(kind: object) -> None:
    """Lets msgspec read the annotations of ``kind`` and of all classes in it, one thread at a time.

    msgspec does so at the first use of a class, and exposes the unfinished result to other threads, which crash.
    """
    if kind not in _prepared:
        with _lock:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
