"""Gradients that this rank has added up towards its next update, where several backward passes make one.

They are each rank's own: they are reduced only when the update is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.keras._optimizers import innermost
from tfcollective.keras._state import state_of
from tfcollective.tensorflow._aggregation import GradientAggregation


def accumulators(model: Any) -> list[Any]:
    """The variables of Keras 3's optimizers that hold such gradients."""
    return [v for optimizer in innermost(model).values() for v in _of_keras(optimizer)]


def accumulated(model: Any) -> dict[str, list[Any]]:
    """Returns what each optimizer between two updates has accumulated (numpy arrays), by the optimizer's place.

    The same places, types and shapes on all ranks.
    """
    found = {place: _values(optimizer) for place, optimizer in innermost(model).items()}
    return {place: values for place, values in found.items() if values}


def restore_accumulated(model: Any, saved: Mapping[str, Sequence[Any]]) -> None:
    """Gives the optimizers what :func:`accumulated` returned, after the state of the optimizers was restored.

    An optimizer that has no place in `saved` begins the passes of an update.

    Raises:
        InvalidArgumentError: `saved` is of other optimizers.
    """
    optimizers = innermost(model)
    for place in (*saved, *(place for place in optimizers if place not in saved)):
        values = saved.get(place, ())
        if not _restore(optimizers.get(place), values):
            raise InvalidArgumentError(
                f"the backup holds {len(values)} gradients of passes towards an update of {place or 'optimizer'}, "
                "which this optimizer does not accumulate"
            )


def _of_keras(optimizer: Any) -> list[Any]:
    return [v for v in getattr(optimizer, "_accumulated_gradients", None) or () if v is not None]


def _aggregation(optimizer: Any) -> GradientAggregation | None:
    state = state_of(optimizer)
    return None if state is None else state.aggregation


def _values(optimizer: Any) -> list[Any]:
    aggregation = _aggregation(optimizer)
    if aggregation is not None:
        return aggregation.values()
    variables = _of_keras(optimizer)
    if not variables or int(optimizer._iterations) % optimizer.gradient_accumulation_steps == 0:
        return []
    return [tf.convert_to_tensor(variable).numpy() for variable in variables]


def _restore(optimizer: Any, values: Sequence[Any]) -> bool:
    """True if the optimizer could take `values`; no values: it begins the passes of an update."""
    aggregation = _aggregation(optimizer)
    if aggregation is not None:
        return aggregation.restore(values)
    variables = _of_keras(optimizer)
    taken = values or [tf.zeros(variable.shape, variable.dtype).numpy() for variable in variables]
    if [tuple(value.shape) for value in taken] != [tuple(variable.shape) for variable in variables]:
        return False
    for variable, value in zip(variables, taken, strict=True):
        variable.assign(value)
    return True
