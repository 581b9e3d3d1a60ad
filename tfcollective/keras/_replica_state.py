"""The weights that training moves without gradients: statistics of batch normalization, codebooks and others.

Each rank moves its own by its own batches, so they differ although all trained weights are equal. Moving statistics are
averaged; of anything else that differs there is a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Max
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._variables import distinct, layers_of
from tfcollective.tensorflow._gradients import variable_key, variable_name
from tfcollective.tensorflow._guard import fingerprints
from tfcollective.tensorflow._replicas import relative_difference

# Attributes of Keras's BatchNormalization; the last two are of Keras 2, with renorm=True.
_STATISTICS = ("moving_mean", "moving_variance", "renorm_mean", "renorm_stddev")


def average_statistics(model: Any, process_set: ProcessSet | None, local: frozenset[int], label: str) -> None:
    """Gives the moving statistics of batch normalization their averages over the ranks. Layers that are not trainable
    keep theirs. All ranks call it.

    Args:
        model: the same on all ranks.
        process_set: whose ranks take part; all if None.
        local: keys (``variable_key``) of the variables that stay each rank's own.
        label: says when, in messages.
    """
    variables = [variable for variable in moving_statistics(model) if variable_key(variable) not in local]
    if not variables:
        return
    values = [tf.convert_to_tensor(variable).numpy() for variable in variables]
    mine = np.concatenate([value.astype(np.float64).ravel() for value in values])
    name = f"moving statistics of {label}"
    averages = runtime.get_communicator(process_set).allreduce(mine, op=Average, name=name)
    ends = np.cumsum([value.size for value in values])[:-1]
    for variable, value, average in zip(variables, values, np.split(averages, ends), strict=True):
        variable.assign(average.reshape(value.shape).astype(value.dtype))


def differing_state(model: Any, process_set: ProcessSet | None, local: frozenset[int], label: str) -> list[str]:
    """The names of the weights without gradients that are not as on the first rank, by more than rounding explains; the
    same on all ranks, which all call it.

    Args:
        model: the same on all ranks.
        process_set: whose ranks take part; all if None.
        local: keys (``variable_key``) of the variables that stay each rank's own.
        label: says when, in messages.
    """
    variables = [variable for variable in _untrained(model) if variable_key(variable) not in local]
    if not variables:
        return []
    world = runtime.get_communicator(process_set)
    values = [tf.convert_to_tensor(variable) for variable in variables]
    name = f"state of {label}"
    everyones = world.allgather(fingerprints(values).numpy()[np.newaxis], name=name)
    places = np.flatnonzero((everyones != everyones[:1]).any(axis=(0, 2)))
    found = [int(place) for place in places]
    if not found:
        return []
    apart = np.array([_is_apart(values[place].numpy(), world, f"{name}/{place}") for place in found], np.int64)
    wrong = world.allreduce(apart, op=Max, name=f"{name}/apart")
    return [variable_name(variables[place], place) for place, one in zip(found, wrong, strict=True) if one]


def local_keys(model: Any) -> frozenset[int]:
    """Returns the keys of the variables that stay each rank's own, as the optimizers say."""
    return frozenset[int]().union(*(state.local.keys() for state in distributed_states(model).values()))


def _is_apart(value: Any, world: Any, name: str) -> bool:
    first = world.broadcast(np.ascontiguousarray(value), 0, name=name)
    if not np.issubdtype(value.dtype, np.floating):
        return not np.array_equal(value, first)
    return relative_difference(value, first) > float(np.sqrt(np.finfo(value.dtype).eps))


def moving_statistics(model: Any) -> list[Any]:
    """Returns the statistics of batch normalization that training moves: each rank's own, until they are averaged."""
    kind = tf.keras.layers.BatchNormalization
    layers = [layer for layer in layers_of(model) if isinstance(layer, kind) and layer.trainable]
    found = [getattr(layer, name, None) for layer in layers for name in _STATISTICS]
    return distinct([variable for variable in found if variable is not None])


def metric_variables(model: Any) -> list[Any]:
    """Returns the variables of a model's metrics, which Keras 2 counts as weights of a model that holds them."""
    layers = [layer for layer in layers_of(model) if isinstance(layer, tf.keras.metrics.Metric)]
    return [variable for metric in (*model.metrics, *layers) for variable in metric.variables]


def _untrained(model: Any) -> Sequence[Any]:
    """Returns the untrained variables without metrics, which Keras 2 counts as weights, and without the states of
    recurrent layers, which belong to a batch.
    """
    states = [one for layer in layers_of(model) for one in tf.nest.flatten(getattr(layer, "states", None) or [])]
    others = {variable_key(one) for one in (*metric_variables(model), *states) if one is not None}
    weights = distinct(model.non_trainable_weights)
    return [one for one in weights if variable_key(one) not in others and _is_number(one)]


def _is_number(variable: Any) -> bool:
    dtype = tf.as_dtype(getattr(variable, "dtype", tf.string))  # Keras 2's tables of words have none
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return bool(is_number) and bool(tf.size(tf.convert_to_tensor(variable)) > 0)  # its own shape may be unknown
