"""Ranks that run out of data before the others."""

from __future__ import annotations

from typing import NoReturn

from tfcollective.errors import UnsupportedError

__all__ = ["join"]


def join() -> NoReturn:
    """Horovod's way to let the other ranks go on; not there yet.

    Raises:
        UnsupportedError: always; says what to do instead.
    """
    raise UnsupportedError(
        "join: a rank cannot stop before the others yet. Give all ranks the same number of steps: "
        "shard(dataset) drops what is left over, dataset.repeat() with steps_per_epoch repeats it."
    )
