"""Updates of variables in an elastic job: their results go into new buffers.

A commit holds the buffers of the variables (``tensorflow.elastic``), so TensorFlow would copy each one when it is
changed in place. ``assign(variable + delta)`` computes the same bits into the buffer of `delta`, which none needs any
longer, and copies nothing.

So it is with what Keras's optimizers add to variables while they apply gradients. What stays in place: sparse
gradients, Keras 2's legacy optimizers, which have fused operations, and a `delta` that is itself a sum (SGD of Keras 2
with ``nesterov``): TensorFlow's graph optimizer would add the three terms in another order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective.keras._copies import replace_method

_SUMS = ("Add", "AddV2", "AddN")


class _Applying(threading.local):
    """The state of a thread: whether an optimizer of an elastic job applies gradients on it."""

    now = False


_applying = _Applying()


def install(keras: Any) -> None:
    """Changes the optimizers of `keras` (the module) and TensorFlow's variables; once a process. Jobs of fixed size run
    what they ran before."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # TensorFlow exports no name of it

    optimizer = keras.optimizers.Optimizer
    replace_method(optimizer, "apply" if hasattr(optimizer, "apply") else "apply_gradients", _apply)
    replace_method(ResourceVariable, "assign_add", _assign_add, "read_value")
    replace_method(ResourceVariable, "assign_sub", _assign_sub, "read_value")


def _apply(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before, _applying.now = _applying.now, runtime.is_initialized() and runtime.settings().elastic
    try:
        return original(optimizer, *args, **kwargs)
    finally:
        _applying.now = before


def _assign_add(original: Callable[..., Any], variable: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
    if not _applying.now or _is_sum(delta):
        return original(variable, delta, *args, **kwargs)
    return variable.assign(variable + tf.convert_to_tensor(delta, variable.dtype), *args, **kwargs)


def _assign_sub(original: Callable[..., Any], variable: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
    if not _applying.now:
        return original(variable, delta, *args, **kwargs)
    return variable.assign(variable - tf.convert_to_tensor(delta, variable.dtype), *args, **kwargs)


def _is_sum(delta: Any) -> bool:
    return tf.is_symbolic_tensor(delta) and delta.op.type in _SUMS
