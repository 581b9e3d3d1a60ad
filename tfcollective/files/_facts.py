"""The facts about a file, and the names of files that are being written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

# A writer that has written nothing for so long was killed, or is no longer meant to.
_ABANDONED_NS = 600 * 10**9


@dataclass(frozen=True)
class FileFacts:
    """The facts about a file at one moment.

    Attributes:
        modified_ns: when it was changed, in ns since 1970; 0 where the file system does not say.
        size: in bytes.
    """

    modified_ns: int
    size: int


def local_facts(path: Path) -> FileFacts:
    """Returns the facts about a file on this machine. Raises OSError."""
    found = path.stat()
    return FileFacts(found.st_mtime_ns, found.st_size)


def temporary_name(name: str) -> str:
    """Returns the name of a file, beside its place, until it is complete; unique for each writer."""
    return f".{name}.{token_hex(8)}.tmp"


def abandoned(name: str, found: Mapping[str, int], now_ns: int) -> Iterable[str]:
    """Yields the files of a directory that killed writers of ``name`` have left.

    Args:
        name: of the file at its place.
        found: names, and when each was changed; 0 where that is not known.
        now_ns: the time by the same clock, which is the file system's.
    """
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp")
    return [
        one for one, changed_ns in found.items() if pattern.fullmatch(one) and 0 < changed_ns < now_ns - _ABANDONED_NS
    ]
