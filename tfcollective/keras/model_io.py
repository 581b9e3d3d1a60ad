"""Loads models for distributed training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfcollective.keras.optimizer import DistributedOptimizer
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.functions import refuse

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """As ``keras.models.load_model``; the optimizer comes back distributed, with its state.

    Args:
        filepath: what was saved, with or without a distributed optimizer.
        custom_optimizers: not supported; name their classes in `custom_objects`.
        custom_objects: as in Keras.
        compression: as in :func:`DistributedOptimizer`.
        **options: more arguments of ``keras.models.load_model``.
    """
    refuse(custom_optimizers=custom_optimizers)
    model = tf.keras.models.load_model(filepath, custom_objects=custom_objects, **options)
    if getattr(model, "optimizer", None) is None:
        return model
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    model.jit_compile = False
    if model.trainable_variables and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)
    return model
