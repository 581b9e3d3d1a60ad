"""Gives all ranks the variables of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.tensorflow.autograph import opaque
from tfcollective.tensorflow.functions import broadcast, refuse
from tfcollective.tensorflow.names import operation_name

__all__ = ["broadcast_variables"]


@opaque
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: None = None, inplace: bool = False
) -> Any:
    """Assigns to every variable its value on rank `root_rank`.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.
        root_rank: whose values count.
        process_set: not supported.
        inplace: Horovod's; no difference here.

    Returns:
        Nothing eagerly; in a v1 graph the operation to run.
    """
    refuse(process_set=process_set)
    del inplace
    targets = [_tensorflow_variable(variable) for variable in variables]
    if runtime.size() == 1 or not targets:
        return None if tf.executing_eagerly() else tf.no_op()
    prefix = operation_name(None)
    assigned = [
        variable.assign(broadcast(variable, root_rank, name=f"{prefix}/{index}"))
        for index, variable in enumerate(targets)
    ]
    return None if tf.executing_eagerly() else tf.group(assigned)


def _tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras 3 variable."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable
