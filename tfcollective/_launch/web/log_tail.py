"""The newest output of the ranks of this machine, from the files of ``--log-dir``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_FILES = 8
_BYTES = 4096
_LINES = 100


def log_tail(directory: Path) -> Sequence[str]:
    """Returns the last lines of the files that were written last, the newest file at the end, each line with its rank.
    Raises OSError."""
    found = sorted(_written(directory), key=lambda one: one[0])[-_FILES:]
    lines = [f"[{path.parent.name.removeprefix('rank.')}] {line}" for _, path in found for line in _last(path)]
    return lines[-_LINES:]


def _written(directory: Path) -> Sequence[tuple[float, Path]]:
    """The files that hold something, and when each was written."""
    paths = (path for name in ("stdout", "stderr") for path in directory.rglob(name))
    stats = [(path.stat(), path) for path in paths]
    return [(stat.st_mtime, path) for stat, path in stats if stat.st_size]


def _last(path: Path) -> Sequence[str]:
    """The last whole lines of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _BYTES))
        text = file.read(_BYTES).decode("utf-8", "replace")
    lines = text.split("\n")[0 if size <= _BYTES else 1 :]
    return [shown for line in lines if (shown := line.rstrip("\r").rpartition("\r")[2])]  # a progress bar's last state
