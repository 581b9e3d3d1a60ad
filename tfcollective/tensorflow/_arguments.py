"""The meaning of the collectives' arguments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective._runtime.communicator import Average, Max, Min, Op, Product, Sum


def checked_op(op: Op) -> Op:
    """The reduction; InvalidArgumentError if there is no such one."""
    if op not in (Average, Sum, Min, Max, Product):
        raise InvalidArgumentError(f"op: expected Average, Sum, Min, Max or Product, got {op!r}")
    return Op(op)


def with_rows(tensor: Any, function: str) -> Any:
    """The tensor, which must have a first dimension; InvalidArgumentError names the function that needs it."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError(f"tensor: {function} needs at least one dimension")
    return tensor


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor times a factor, in float64 so that integers survive."""
    if factor == 1.0:
        return tf.identity(tensor)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
