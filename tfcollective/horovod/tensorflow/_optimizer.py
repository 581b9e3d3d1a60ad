"""Horovod's ``DistributedOptimizer`` of ``horovod.tensorflow``: for optimizers of ``tf.compat.v1`` and of Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.tensorflow._aggregation import Passes
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._docstrings import documented
from tfcollective.tensorflow._gradients import GradientOptions
from tfcollective.tensorflow._optimizer import DistributedV1


@documented
def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that it applies gradients reduced over all ranks.

    On ranks outside of `process_set` gradients stay as they are.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``, or a Keras optimizer (see
            ``tfcollective.keras.DistributedOptimizer``).
        name: of a v1 optimizer; "Distributed" and its class if None.
        use_locking: of a v1 optimizer.
        op: Average (default) or Sum.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported.
    """
    options = GradientOptions.checked(locals())
    passes = Passes(backward_passes_per_step, average_aggregated_gradients)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return DistributedV1(optimizer, name, use_locking, options, passes)
    from tfcollective.keras._optimizer import distribute

    return distribute(optimizer, options, name, passes)
