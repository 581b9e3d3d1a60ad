"""Decides whether Keras's trainer divides its work: ``set_distribution(DataParallel())`` of ``keras.distribution``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._parallel.division import Division

_missing: list[str] = []


def note_missing(what: str) -> None:
    """This version of Keras lacks something."""
    _missing.append(what)


def active() -> Division | None:
    """Returns how the work is divided; None if each process works for itself.

    Raises:
        UnsupportedError: it is to be divided, and this version of Keras lacks what that leans on.
    """
    distribution: Any = getattr(tf.keras, "distribution", None)
    chosen = None if distribution is None else distribution.distribution()
    if chosen is None or not runtime.is_initialized() or runtime.size() == 1 or tf.distribute.has_strategy():
        return None
    if _missing:
        raise UnsupportedError(
            f"DataParallel: Keras {tf.keras.__version__} is not known to tfcollective: {_missing[0]}"
        )
    return Division(runtime.rank(), runtime.size(), bool(chosen.auto_shard_dataset))
