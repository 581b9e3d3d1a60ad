"""The parts of an optimizer that its configuration leaves out, so that a copy made from the configuration lacks them.

These are arguments that ``get_config`` leaves out, attributes that were set later, and transformers of gradients. Keras
makes what it keeps in an optimizer itself again, or restores it with the variables.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_OF_KERAS = frozenset(
    {"built", "gradient_accumulation_steps", "name"}
    | {"_built", "_clipnorm_fn", "_clipvalue_fn", "_deferred_slot_restorations", "_distribution_strategy"}
    | {"_exclude_from_weight_decay_cache", "_global_clipnorm_fn", "_hyper", "_hypers_created", "_index_dict"}
    | {"_initial_decay", "_is_wrapped_by_loss_scale_optimizer", "_iterations", "_learning_rate", "_lock"}
    | {"_mesh", "_name", "_run_with_dtensor", "_slot_names"}
    | {"_slots", "_tfcollective", "_tracker", "_trainable_variables", "_trainable_variables_indices", "_variables"}
    | {"_weights"}
)
_PACKAGES = ("keras", "tf_keras", "tensorflow")


def lost(optimizer: Any, made: Any) -> dict[str, Any]:
    """The attributes of `optimizer` that `made`, which was made of its configuration, does not have, or has otherwise.

    Variables, and what holds some, are left out: the optimizer makes them when it is built.
    """
    own, others = vars(optimizer), vars(made)
    return {
        name: _moved(value, optimizer, made)
        for name, value in own.items()
        if name not in _OF_KERAS
        and not name.startswith("_self_")
        and (_is_plain(value) or (others.get(name) is None and not _has_variables(value)))
        and not (name in others and _same(value, others[name], optimizer, made))
    }


def _is_plain(value: Any) -> bool:
    """True for what is the user's own, a value, or a function; False for objects of Keras and TensorFlow."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, tf.DType) or tf.is_tensor(value):
        return not hasattr(value, "assign")
    return not _is_of_keras(value)


def _is_of_keras(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _PACKAGES


def _has_variables(value: Any) -> bool:
    parts = tf.nest.flatten(value)
    return any(hasattr(part, "assign") for part in parts) or not parts


def _same(one: Any, other: Any, optimizer: Any, made: Any) -> bool:
    if one is other or (one is optimizer and other is made):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return one.__func__ is other.__func__ and _same(one.__self__, other.__self__, optimizer, made)
    if isinstance(one, types.FunctionType):
        cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, other)]
        same_cells = all(_same(a, b, optimizer, made) for a, b in zip(*cells, strict=False))
        return one.__code__ is other.__code__ and one.__defaults__ == other.__defaults__ and same_cells
    if isinstance(one, np.ndarray) or tf.is_tensor(one):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def _moved(value: Any, optimizer: Any, made: Any) -> Any:
    """Returns the value for `made`: methods of `optimizer` bound to it, containers in which Keras tracks as plain ones,
    and everything else as it is."""
    if isinstance(value, types.MethodType) and value.__self__ is optimizer:
        return types.MethodType(value.__func__, made)
    if _is_of_keras(value):
        if isinstance(value, Mapping):
            return {key: _moved(part, optimizer, made) for key, part in value.items()}
        if isinstance(value, list | set):
            return (set if isinstance(value, set) else list)(_moved(part, optimizer, made) for part in value)
    return value
