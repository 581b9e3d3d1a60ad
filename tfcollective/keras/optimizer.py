"""``DistributedOptimizer``: an optimizer of the same class that applies gradients reduced over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective.communicator import Average, Op
from tfcollective.errors import InvalidArgumentError, UnsupportedError
from tfcollective.keras import adapter
from tfcollective.keras.keras2 import Keras2LegacyMixin, Keras2Mixin
from tfcollective.keras.keras3 import Keras3Mixin, check_hooks
from tfcollective.keras.state import ATTRIBUTE, OptimizerState, distributed_part
from tfcollective.log import get_logger
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.functions import refuse
from tfcollective.tensorflow.gradients import GradientOptions

__all__ = ["DistributedOptimizer", "distribute"]

_LOG = get_logger(__name__)
_KEPT_ATTRIBUTES = (
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_names",
    "_exclude_from_weight_decay_pattern",
)
_classes: dict[type, type] = {}


def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Op = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like `optimizer` whose updates use the gradients of all ranks.

    Gradients are reduced exactly once an update: before clipping, weight decay and moving averages, and after the
    accumulation of ``gradient_accumulation_steps``. The result's class has the name and module of Keras's own, so that
    a model saved with it loads where tfcollective is not installed. State that `optimizer` has already is taken over.

    Args:
        optimizer: of Keras 3, or of Keras 2 (also legacy). Of a LossScaleOptimizer the one inside is wrapped.
        name: of the new optimizer; that of `optimizer` if None.
        device_dense: not supported.
        device_sparse: not supported.
        compression: how dense gradients travel, of ``Compression``.
        sparse_as_dense: turn IndexedSlices into dense tensors first.
        gradient_predivide_factor: divide by it before the sum, multiply by it after; Average only.
        op: Average (default) or Sum.
        backward_passes_per_step: only 1; ``gradient_accumulation_steps`` of Keras 3 does the rest.
        average_aggregated_gradients: without meaning for one backward pass a step.
        num_groups: into how many buckets gradients are put whatever their size; 0: by size.
        groups: a number of groups, or lists of variables whose gradients share a bucket.
        process_set: not supported.
        scale_local_gradients: divide the gradients of local variables (``register_local_var``) by the number of
            ranks.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported; says which.
        InvalidArgumentError: `optimizer` is distributed already.
    """
    del average_aggregated_gradients
    refuse(
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
    )
    options = GradientOptions.checked(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        scale_local_gradients=scale_local_gradients,
    )
    return distribute(optimizer, options, name)


def distribute(optimizer: Any, options: GradientOptions, name: str | None = None) -> Any:
    """See :func:`DistributedOptimizer`."""
    if distributed_part(optimizer) is not None:
        raise InvalidArgumentError("optimizer: it is a DistributedOptimizer already")
    adapter.install(tf.keras)
    if hasattr(optimizer, "inner_optimizer"):
        return _distribute_inner(optimizer, options, name)
    kind: Any = _distributed_class(type(optimizer))
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    rate = getattr(optimizer, "_learning_rate", None)
    if callable(rate) and not hasattr(rate, "get_config"):
        config["learning_rate"] = rate  # a function: not every one survives a config
    made = kind.from_config(config)
    object.__setattr__(made, ATTRIBUTE, OptimizerState(options, _values(optimizer)))
    for attribute in _KEPT_ATTRIBUTES:
        if attribute in vars(optimizer):
            setattr(made, attribute, vars(optimizer)[attribute])
    return made


def _distribute_inner(scaler: Any, options: GradientOptions, name: str | None) -> Any:
    """A LossScaleOptimizer like `scaler` around a distributed optimizer."""
    config = scaler.get_config()
    config.pop("inner_optimizer")
    inner = distribute(scaler.inner_optimizer, options, name)
    return type(scaler)(inner, **config)


def _distributed_class(kind: Any) -> type:
    """The class of distributed optimizers of class `kind`; saved under the name by which Keras knows `kind`."""
    if kind in _classes:
        return _classes[kind]
    public = getattr(tf.keras.optimizers, kind.__name__, None) is kind
    module = "keras.optimizers" if public else kind.__module__
    return _classes.setdefault(
        kind, type(kind.__name__, (_mixin(kind), kind), {"__module__": module, "__doc__": kind.__doc__})
    )


def _mixin(kind: type) -> type:
    if hasattr(kind, "_backend_apply_gradients"):
        check_hooks(kind)
        return Keras3Mixin
    if hasattr(kind, "aggregate_gradients"):
        return Keras2Mixin
    if hasattr(kind, "_aggregate_gradients"):
        return Keras2LegacyMixin
    raise UnsupportedError(f"optimizer: {kind.__module__}.{kind.__name__} is not an optimizer of Keras 2 or Keras 3")


def _values(optimizer: Any) -> list[Any]:
    """What a built optimizer has gathered: its variables' values, in order. Empty for a new one."""
    if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        if int(getattr(optimizer, "iterations", 0)) > 0:
            _LOG.warning("the state of a legacy optimizer that has trained is not taken over")
        return []
    return [tf.identity(variable) for variable in optimizer.variables]
