"""Loads models for distributed training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfcollective.keras.optimizer import DistributedOptimizer
from tfcollective.tensorflow.compression import Compression

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """As ``keras.models.load_model``; the optimizer comes back distributed, with its state.

    Args:
        filepath: what was saved, with or without a distributed optimizer.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as in Keras.
        compression: as in :func:`DistributedOptimizer`.
        legacy_opts: Horovod's; not needed.
        **options: more arguments of ``keras.models.load_model``.
    """
    del legacy_opts
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = tf.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})}, **options)
    if getattr(model, "optimizer", None) is None:
        return model
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    model.jit_compile = False
    if model.trainable_variables and hasattr(model.optimizer, "build"):
        model.optimizer.build(model.trainable_variables)
    return model
