"""Loads models for distributed training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfcollective.keras import _adapter as adapter
from tfcollective.keras._classes import become_distributed
from tfcollective.keras._optimizers import innermost
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.keras._variables import build_optimizer
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._gradients import GradientOptions


def load_model(
    filepath: Any,
    *,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """Loads as ``keras.models.load_model``; optimizers come back distributed, with their state and loss scale.

    Args:
        filepath: what was saved, with or without a distributed optimizer.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as in Keras.
        compression: as in :func:`DistributedOptimizer`.
        **options: more arguments of ``keras.models.load_model``.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = tf.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})}, **options)
    adapter.check_backend(tf.keras)
    found = innermost(model)
    if not found:
        return model
    for optimizer in found.values():
        if state_of(optimizer) is None:  # itself, so that it keeps all that was saved, a loss scale around it included
            become_distributed(optimizer, OptimizerState(GradientOptions(compression=compression)))
    model.jit_compile = False
    build_optimizer(model)
    return model
