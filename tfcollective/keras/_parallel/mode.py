"""Decides whether Keras divides its work: by ``set_distribution(DataParallel())`` of ``keras.distribution``, or with
Keras 2, which has no distributions, by ``--data-parallel``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
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


def noting(replace_method: Callable[..., bool]) -> Callable[..., bool]:
    """`replace_method` of ``tfcollective.keras._copies``, which notes where there was no such method."""

    def replace(kind: type, method: str, *rest: Any) -> bool:
        is_there = replace_method(kind, method, *rest)
        if not is_there:
            note_missing(f"{kind.__name__} has no {method}")
        return is_there

    return replace


def check_attributes(kind: type, *names: str) -> None:
    """Raises AttributeError for a name that a class of Keras's neither has nor uses in its methods."""
    members = [(name, member) for owner in kind.__mro__ for name, member in vars(owner).items()]
    known = {name for name, _ in members}
    for _, member in members:
        function = inspect.unwrap(getattr(member, "fget", None) or member)
        known.update(getattr(getattr(function, "__code__", None), "co_names", ()))
    missing = [name for name in names if name not in known]
    if missing:
        raise AttributeError(f"{kind.__name__} has no {missing[0]}")


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
    if not runtime.is_initialized() or tf.distribute.has_strategy():
        return None
    if runtime.size() == 1 and not (_asked.here and runtime.settings().elastic):  # it may be the last of several
        return None
    if _missing:
        raise UnsupportedError(
            f"DataParallel: tfcollective does not know Keras {_version()}: {_missing[0]}: install a newer one"
        )
    return Division(runtime.rank(), runtime.size(), _asked.here or bool(getattr(chosen, "_auto_shard_dataset", True)))


def _version() -> str:
    return str(tf.keras.__version__) if has_distributions() else f"2 of TensorFlow {tf.__version__}"


@contextmanager
def divided() -> Iterator[None]:
    """Within it, work is divided on this thread in any case."""
    before, _asked.here = _asked.here, True
    try:
        yield
    finally:
        _asked.here = before
