"""Gives all ranks the variables of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.errors import StateError
from tfcollective.runtime import ProcessSet
from tfcollective.tensorflow import ops
from tfcollective.tensorflow.border import collective
from tfcollective.tensorflow.gradients import variable_name
from tfcollective.tensorflow.names import operation_name

__all__ = ["broadcast_", "broadcast_global_variables", "broadcast_variables"]


@collective
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet | None = None, inplace: bool = False
) -> Any:
    """Assigns to every variable its value on rank `root_rank`.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.
        root_rank: whose values count; a rank of the world, also with a process set.
        process_set: whose ranks take part; all if None.
        inplace: Horovod's; no difference here.

    Returns:
        Nothing eagerly; in a v1 graph the operation to run.
    """
    del inplace
    assigned = _assign_all(list(variables), root_rank, None, process_set)
    return None if tf.executing_eagerly() else tf.group(assigned)


@collective
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """As :func:`broadcast_variables`, and returns the variables; in a v1 graph their new values, to be run.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.
        root_rank: whose values count; a rank of the world, also with a process set.
        name: matches the operation between ranks.
        process_set: whose ranks take part; all if None.
    """
    variables = list(variables)
    assigned = _assign_all(variables, root_rank, name, process_set)
    return assigned if assigned and not tf.compat.v1.executing_eagerly_outside_functions() else variables


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all global variables of the current v1 graph their values on rank `root_rank`.

    Raises:
        StateError: called eagerly, where there is no such list of variables.
    """
    if tf.executing_eagerly():
        raise StateError(
            "broadcast_global_variables works in graphs of tf.compat.v1 only: "
            "call broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _assign_all(
    variables: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet | None
) -> list[Any]:
    members = runtime.members(process_set)
    root = members.place_of(root_rank, "root_rank")
    targets = [_tensorflow_variable(variable) for variable in variables]
    if members.size == 1 or not targets:
        return []
    prefix = operation_name(name, members.process_set_id)
    return [
        target.assign(
            ops.broadcast(
                tf.convert_to_tensor(target),
                root=root,
                name=f"{prefix}/{index}",
                label=variable_name(variable, index),
                process_set_id=members.process_set_id,
            )
        )
        for index, (target, variable) in enumerate(zip(targets, variables, strict=True))
    ]


def _tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras 3 variable."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable
