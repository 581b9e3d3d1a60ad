"""Ranks and sizes as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime import Members
from tfcollective.tensorflow import _xla as xla


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """int32: how many ranks the process set with this number has; of all ranks for 0.

    Args:
        process_set_id: the number of the process set; 0 is that of all ranks.
        name: of the TensorFlow operation.
    """
    return _value(lambda: runtime.members_of_set(process_set_id).size, name or "size")


def rank_op(name: str | None = None) -> Any:
    """int32: this process's rank.

    Args:
        name: of the TensorFlow operation.
    """
    return _value(runtime.rank, name or "rank")


def local_rank_op(name: str | None = None) -> Any:
    """int32: this process's rank on its node.

    Args:
        name: of the TensorFlow operation.
    """
    return _value(runtime.local_rank, name or "local_rank")


def local_size_op(name: str | None = None) -> Any:
    """int32: how many ranks this node has.

    Args:
        name: of the TensorFlow operation.
    """
    return _value(runtime.local_size, name or "local_size")


def size_in_graph(members: Members) -> Any:
    """Returns the number of members when a graph that is made now runs: a number, or int32 in an elastic job."""
    if not members.elastic:
        return members.size
    return xla.place_of(members)[1] if xla.is_compiled() else size_op(members.process_set_id)


def rank_in_graph(members: Members) -> Any:
    """Returns this process's place among the members when a graph that is made now runs: see :func:`size_in_graph`."""
    if not members.elastic:
        return members.rank
    if xla.is_compiled():
        return xla.place_of(members)[0]
    return _value(lambda: runtime.members_of_set(members.process_set_id).rank, "rank")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """int32: 1 if this process is a member of the process set with this number, else 0.

    Args:
        process_set_id: the number of the process set; 0 is that of all ranks.
        name: of the TensorFlow operation.
    """
    return _value(lambda: int(runtime.members_of_set(process_set_id).included), name or "process_set_included")


def _value(read: Callable[[], int], name: str) -> Any:
    """Read when the graph runs, not when it is made."""
    import numpy as np

    # Stateful: what it reads changes with init() and shutdown(), so TensorFlow must not fold it.
    value = tf.numpy_function(lambda: np.int32(read()), [], tf.int32, stateful=True, name=name)
    return tf.ensure_shape(value, [])
