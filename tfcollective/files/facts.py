"""What a look at a file tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileFacts", "local_facts"]


@dataclass(frozen=True)
class FileFacts:
    """What a look at a file tells.

    Attributes:
        modified_ns: when it was changed, in ns since 1970; 0 where the file system does not say.
        size: in bytes.
    """

    modified_ns: int
    size: int


def local_facts(path: Path) -> FileFacts:
    """Those of a file on this machine. Raises OSError."""
    found = path.stat()
    return FileFacts(found.st_mtime_ns, found.st_size)
