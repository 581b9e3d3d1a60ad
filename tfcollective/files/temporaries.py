"""Names of files that are being written, and which of them nobody writes any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from secrets import token_hex

__all__ = ["abandoned", "temporary_name"]

# A writer that has written nothing for so long was killed, or is no longer meant to.
_ABANDONED_NS = 600 * 10**9


def temporary_name(name: str) -> str:
    """What a file is called, beside its place, until it is whole; no two writers call theirs the same."""
    return f".{name}.{token_hex(8)}.tmp"


def abandoned(name: str, found: Mapping[str, int], now_ns: int) -> Iterable[str]:
    """Of the files of a directory, those that killed writers of ``name`` have left.

    Args:
        name: of the file at its place.
        found: names, and when each was changed; 0 where that is not known.
        now_ns: the time by the same clock, which is the file system's.
    """
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
    return [
        one for one, changed_ns in found.items() if pattern.fullmatch(one) and 0 < changed_ns < now_ns - _ABANDONED_NS
    ]
