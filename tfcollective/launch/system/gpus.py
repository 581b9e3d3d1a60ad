"""The GPUs of this node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["VISIBLE", "visible_gpus"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")  # one directory a GPU; tells the number without loading a library


def visible_gpus(environ: Mapping[str, str], driver: Path = _DRIVER) -> tuple[str, ...]:
    """The GPUs of this node that may be used: as ``CUDA_VISIBLE_DEVICES`` calls them, else their numbers."""
    named = environ.get(VISIBLE)
    if named is None:
        return tuple(str(number) for number in range(len(list(driver.glob("*")))))
    gpus: list[str] = []
    for name in (part.strip() for part in named.split(",")):
        if not name or name.startswith("-"):  # what follows is hidden, too
            break
        gpus.append(name)
    return tuple(gpus)
