"""Small JSON files that are there whole or not at all."""

from __future__ import annotations

from typing import TypeVar

from tfcollective.codec import decode, encode
from tfcollective.files import Place, local_copy, written_whole

__all__ = ["read_json", "write_json"]

_T = TypeVar("_T")


def write_json(place: Place, value: object) -> None:
    """Puts `value` at `place`, which it replaces at once."""
    with written_whole(place) as path:
        path.write_bytes(encode(value))


def read_json(place: Place, kind: type[_T]) -> _T | None:
    """The `kind` that is at `place`; None if nothing is.

    Raises ConfigError if it is something else, OSError if it cannot be read.
    """
    try:
        with local_copy(place) as path:
            return decode(path.read_bytes(), kind, str(place))
    except FileNotFoundError:
        return None
