"""Where other Python environments and programs of the benchmarks are looked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import tfcollective

__all__ = ["environment_folders"]


def environment_folders(given: str) -> Iterator[Path]:
    """The folder given, or the usual ones: ``.venv`` here, the folder of this environment, and ``.venv`` of the
    checkout that this package runs from."""
    if given:
        yield Path(given).resolve()
        return
    yield Path.cwd() / ".venv"
    yield Path(sys.prefix).parent
    yield Path(tfcollective.__file__).resolve().parents[1] / ".venv"
