"""Tensors that Keras's layers derive from their weights and keep beside them.

``Normalization`` computes with ``mean`` and ``variance``, tensors that its ``finalize_state()`` makes of its weights.
Weights that are assigned from outside, by a broadcast for example, do not reach them: the layer continues with what it
had. So ``finalize_state()`` is called wherever tfcollective has assigned weights.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfcollective.tensorflow._gradients import variable_key

_NAME = "mean"  # of a weight of Normalization


def derive_anew(layers: Iterable[Any]) -> None:
    """Lets the layers that have weights and a ``finalize_state()`` derive their tensors again; others are skipped."""
    for layer in layers:
        if _derives(layer):
            layer.finalize_state()


def derive_anew_from(variables: Sequence[Any]) -> None:
    """Does what :func:`derive_anew` does, for the layers that have one of these variables.

    A variable does not know its layer: the objects of this process are searched, if a variable has the name of a weight
    of ``Normalization``.
    """
    rooms = [getattr(sys.modules.get(name), "layers", None) for name in ("keras", "tf_keras")]
    kinds = tuple(kind for room in rooms for kind in [getattr(room, "Normalization", None)] if kind is not None)
    keys = {variable_key(variable) for variable in variables if _may_be_of_normalization(variable)}
    if not kinds or not keys:
        return
    layers = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    derive_anew(layer for layer in layers if any(variable_key(weight) in keys for weight in layer.weights))


def derived_tensors(layers: Iterable[Any]) -> list[Any]:
    """The tensors that these layers hold; a traced function has those of the time of its trace."""
    return [value for layer in layers if _derives(layer) for value in vars(layer).values() if tf.is_tensor(value)]


def same_values(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """True if two results of :func:`derived_tensors` are equal."""
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(
        one is other or (one.shape == other.shape and bool(tf.reduce_all(tf.equal(one, other)))) for one, other in pairs
    )


def _derives(layer: Any) -> bool:
    return callable(getattr(layer, "finalize_state", None)) and getattr(layer, "built", False) and bool(layer.weights)


def _may_be_of_normalization(variable: Any) -> bool:
    name = str(getattr(variable, "name", ""))
    return not getattr(variable, "trainable", True) and name.partition(":")[0].rpartition("/")[2] == _NAME
