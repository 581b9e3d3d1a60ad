"""Decides whether Keras's trainer divides its work: ``set_distribution(DataParallel())`` of ``keras.distribution``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._parallel.division import Division

_missing: list[str] = []


class _Asked(threading.local):
    here = False


_asked = _Asked()


def note_missing(what: str) -> None:
    """This version of Keras lacks something."""
    _missing.append(what)


def active() -> Division | None:
    """Returns how the work is divided; None if each process works for itself.

    Raises:
        UnsupportedError: it is to be divided, and this version of Keras lacks what that leans on.
    """
    distribution: Any = getattr(tf.keras, "distribution", None)
    chosen: Any = None if distribution is None else distribution.distribution()
    if chosen is None and not _asked.here:
        return None
    if not runtime.is_initialized() or runtime.size() == 1 or tf.distribute.has_strategy():
        return None
    if _missing:
        raise UnsupportedError(
            f"DataParallel: Keras {tf.keras.__version__} is not known to tfcollective: {_missing[0]}"
        )
    return Division(runtime.rank(), runtime.size(), _asked.here or bool(chosen.auto_shard_dataset))


@contextmanager
def divided() -> Iterator[None]:
    """Within it, work is divided on this thread without a distribution of Keras's.

    Raises:
        UnsupportedError: Keras 2.
    """
    if not hasattr(tf.keras, "distribution"):
        raise UnsupportedError(
            f"this is Keras {tf.keras.__version__}, and all ranks evaluate and predict together with Keras 3 only: use "
            "MetricAverageCallback with each rank's part of the data"
        )
    before, _asked.here = _asked.here, True
    try:
        yield
    finally:
        _asked.here = before
