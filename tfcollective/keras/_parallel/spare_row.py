"""A row for layers that a rank without rows of a batch calls.

Convolutions of no rows fail with oneDNN, TensorFlow's default on CPUs: results and gradients have wrong shapes. So
there layers compute with a row of another rank, and what they return has no row again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective.keras._parallel.division import has_rows
from tfcollective.keras._parallel.step import current_step, within


def call_layer(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """``Layer.__call__``; gives the row to the outermost layer that is called in a step that may have no rows."""
    step = current_step()
    if step is None or not step.spare or _has_composites(args, kwargs):  # the layers within get dense tensors
        return original(layer, *args, **kwargs)
    filling = _Filling(step.spare)
    args, kwargs = tf.nest.map_structure(filling.filled, (args, kwargs))
    with within(dataclasses.replace(step, spare=(), is_filled=filling.is_empty is not None)):
        results = original(layer, *args, **kwargs)
    return results if filling.is_empty is None else tf.nest.map_structure(filling.emptied, results)


class _Filling:
    """One call of a layer.

    Attributes:
        is_empty: a scalar bool tensor: an argument has no rows; None if all are known to have some.
    """

    def __init__(self, spare: tuple[tuple[Any, Any], ...]) -> None:
        self._spare = list(spare)
        self.is_empty: Any = None

    def filled(self, value: Any) -> Any:
        """An argument; where it has no rows, with one of its type and shape."""
        if not isinstance(value, tf.Tensor) or not has_rows(value) or (value.shape[0] or 0) > 0:
            return value
        is_empty = tf.equal(tf.shape(value)[0], 0)
        self.is_empty = is_empty if self.is_empty is None else tf.logical_or(self.is_empty, is_empty)
        row = self._row_for(value)
        result = tf.cond(is_empty, lambda: _row_like(value) if row is None else row, lambda: value)
        return _with_mask(result, value, self.filled)

    def _row_for(self, value: Any) -> Any:
        """The row of this part of the batch, else the first one like it that no argument has got; None without."""
        same = [one for part, one in self._spare if part is value]
        row = next(iter(same or [one for _, one in self._spare if _are_alike(one, value)]), None)
        self._spare = [one for one in self._spare if one[1] is not row]
        return row

    def emptied(self, value: Any) -> Any:
        """A result; where arguments had no rows, without rows."""
        if not isinstance(value, (tf.Tensor, tf.RaggedTensor)) or not has_rows(value):
            return value
        rows = tf.shape(value)[0] if isinstance(value, tf.Tensor) else value.nrows(tf.int32)
        return _with_mask(value[: tf.where(self.is_empty, 0, rows)], value, self.emptied)


def _has_composites(*arguments: Any) -> bool:
    leaves = tf.nest.flatten(arguments, expand_composites=False)
    return any(isinstance(one, tf.RaggedTensor | tf.SparseTensor) for one in leaves)


def _are_alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape[1:].is_compatible_with(other.shape[1:]))


def _row_like(value: Any) -> Any:
    shape = tf.concat([[1], tf.shape(value)[1:]], 0)
    return tf.zeros(shape, tf.string) if value.dtype == tf.string else tf.ones(shape, value.dtype)


def _with_mask(value: Any, original: Any, change: Callable[[Any], Any]) -> Any:
    mask = getattr(original, "_keras_mask", None)
    if mask is not None:
        value._keras_mask = change(mask)
    return value
