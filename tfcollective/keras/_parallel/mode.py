"""Decides whether Keras divides its work: by ``set_distribution(DataParallel())`` of ``keras.distribution``, or with
Keras 2, which has no distributions, by ``--data-parallel``.
"""

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
    here = False  # work is divided without a distribution of Keras's


_asked = _Asked()


def note_missing(what: str) -> None:
    """This version of Keras lacks something."""
    _missing.append(what)


def has_distributions() -> bool:
    """True for Keras 3."""
    return hasattr(tf.keras, "distribution")


def begin() -> None:
    """Divides work from here on: ``--data-parallel``."""
    if has_distributions():
        tf.keras.distribution.set_distribution(tf.keras.distribution.DataParallel())
    else:
        _Asked.here = True  # on all threads


def active() -> Division | None:
    """Returns how the work is divided; None if each process works for itself.

    Raises:
        UnsupportedError: it is to be divided, and this version of Keras lacks what that leans on.
    """
    chosen: Any = tf.keras.distribution.distribution() if has_distributions() else None
    if chosen is None and not _asked.here:
        return None
    if not runtime.is_initialized() or runtime.size() == 1 or tf.distribute.has_strategy():
        return None
    if _missing:
        raise UnsupportedError(
            f"DataParallel: the Keras of TensorFlow {tf.__version__} is not known to tfcollective: {_missing[0]}"
        )
    return Division(runtime.rank(), runtime.size(), _asked.here or bool(chosen.auto_shard_dataset))


@contextmanager
def divided() -> Iterator[None]:
    """Within it, work is divided on this thread in any case."""
    before, _asked.here = _asked.here, True
    try:
        yield
    finally:
        _asked.here = before
