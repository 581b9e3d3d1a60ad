"""``DistributedOptimizer`` for TensorFlow's own optimizers; Keras's go to ``tfcollective.keras``."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from tfcollective.communicator import Average, Op
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.functions import refuse
from tfcollective.tensorflow.gradients import GradientOptions, reduce_gradients

__all__ = ["DistributedOptimizer"]

_count = itertools.count()


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
    process_set: None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that it applies gradients reduced over all ranks.

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer``, or a Keras optimizer (see
            ``tfcollective.keras.DistributedOptimizer``).
        name: of a v1 optimizer; "Distributed" and its class if None.
        use_locking: of a v1 optimizer.
        device_dense: not supported.
        device_sparse: not supported.
        compression: how dense gradients travel, of ``Compression``.
        sparse_as_dense: turn IndexedSlices into dense tensors first.
        backward_passes_per_step: only 1; Keras 3's `gradient_accumulation_steps` does the rest.
        op: Average (default) or Sum.
        gradient_predivide_factor: divide by it before the sum, multiply by it after; Average only.
        average_aggregated_gradients: without meaning for one backward pass a step.
        num_groups: into how many buckets gradients are put whatever their size; 0: by size.
        groups: a number of groups, or lists of variables whose gradients share a bucket.
        process_set: not supported.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported.
    """
    del average_aggregated_gradients
    refuse(
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
    )
    arguments: dict[str, Any] = {
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "num_groups": num_groups,
        "groups": groups,
        "scale_local_gradients": scale_local_gradients,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _DistributedV1(optimizer, name, use_locking, GradientOptions.checked(**arguments))
    from tfcollective import keras  # the room above, and the one arrow that points up: see docs/adr/0006

    return keras.DistributedOptimizer(optimizer, name=name, **arguments)


class _DistributedV1(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is not typed
    """Reduces in ``compute_gradients``; everything else is the wrapped optimizer's."""

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, options: GradientOptions) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._options = options
        self._scope = f"v1_optimizer.{next(_count)}"

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's, reduced over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        reduced = reduce_gradients(gradients, variables, scope=self._scope, options=self._options)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)
