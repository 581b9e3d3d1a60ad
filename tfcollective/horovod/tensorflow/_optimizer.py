"""Horovod's optimizers, tapes and hook of ``horovod.tensorflow``, for ``tf.compat.v1`` and for Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective.horovod._signatures import with_signature


def _of_either(optimizer: Any, *, use_locking: bool = False, **options: Any) -> Any:
    """Wraps an optimizer of ``tf.compat.v1.train``, or of Keras.

    See ``tfcollective.tensorflow.DistributedOptimizer`` and ``tfcollective.keras.DistributedOptimizer``.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return tfc.DistributedOptimizer(optimizer, use_locking=use_locking, **options)
    import tfcollective.keras

    return tfcollective.keras.DistributedOptimizer(optimizer, **options)


DistributedOptimizer = with_signature(
    _of_either,
    "optimizer name use_locking device_dense device_sparse compression sparse_as_dense backward_passes_per_step op"
    " gradient_predivide_factor average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    like=tfc.DistributedOptimizer,
)
DistributedGradientTape = with_signature(
    tfc.DistributedGradientTape,
    "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups groups"
    " process_set scale_local_gradients",
)
PartialDistributedGradientTape = with_signature(
    tfc.DistributedGradientTape,
    "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups groups"
    " process_set local_layers scale_local_gradients",
)


class BroadcastGlobalVariablesHook(tfc.BroadcastGlobalVariablesHook):
    """See ``tfcollective.tensorflow.BroadcastGlobalVariablesHook``; `device` is Horovod's and without effect."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        del device
        super().__init__(root_rank)
