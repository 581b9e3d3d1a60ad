"""The functions of Horovod's module of this name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective._runtime import ProcessSet
from tfcollective.horovod._common import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from tfcollective.tensorflow._border import collective
from tfcollective.tensorflow._derived import derive_anew_from
from tfcollective.tensorflow._variables import assign_all

__all__ = ["allgather_object", "broadcast_", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]


@collective
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """Broadcasts and returns the variables, see :func:`broadcast_variables`; in a v1 graph, their new values.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.
        name: matches the operation between ranks.
    """
    variables = list(variables)
    assigned = assign_all(variables, root_rank, name, process_set)
    if assigned and tf.executing_eagerly():
        derive_anew_from(variables)
    return assigned if assigned and not tf.compat.v1.executing_eagerly_outside_functions() else variables
