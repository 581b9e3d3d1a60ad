"""``DistributedOptimizer``: an optimizer of the same class that applies gradients reduced over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcollective.communicator import Average, Op
from tfcollective.errors import InternalError, InvalidArgumentError, UnsupportedError
from tfcollective.keras import adapter
from tfcollective.keras.keras2 import Keras2LegacyMixin, Keras2Mixin
from tfcollective.keras.keras3 import Keras3Mixin, check_hooks
from tfcollective.keras.state import ATTRIBUTE, OptimizerState, distributed_part
from tfcollective.log import get_logger
from tfcollective.runtime import ProcessSet
from tfcollective.tensorflow.aggregation import GradientAggregation, checked_passes
from tfcollective.tensorflow.compression import Compression
from tfcollective.tensorflow.gradients import GradientOptions
from tfcollective.tensorflow.strategies import refuse_strategy

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "distribute"]

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
    process_set: ProcessSet | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like `optimizer` whose updates use the gradients of all ranks.

    Gradients are reduced exactly once an update: before clipping, weight decay and moving averages, and after the
    accumulation of ``gradient_accumulation_steps``. The result's class has the name and module of Keras's own, so that
    a model saved with it loads where tfcollective is not installed. State that `optimizer` has already is taken over.

    Args:
        optimizer: of Keras 3, or of Keras 2 (also legacy). Of a LossScaleOptimizer the one inside is wrapped.
        name: of the new optimizer; that of `optimizer` if None.
        device_dense: Horovod's; without effect.
        device_sparse: Horovod's; without effect.
        compression: how dense gradients travel, of ``Compression``.
        sparse_as_dense: turn IndexedSlices into dense tensors first.
        gradient_predivide_factor: divide by it before the sum, multiply by it after; Average only.
        op: Average (default) or Sum.
        backward_passes_per_step: how many passes are added up in this process for one reduction and one update.
            Keras 3 does it (``gradient_accumulation_steps`` is set), and ``optimizer.iterations`` counts updates; with
            Keras 2 it counts passes, as with Horovod. A LearningRateSchedule is asked by the number of passes.
        average_aggregated_gradients: take the mean of those passes instead of their sum.
        num_groups: into how many buckets gradients are put whatever their size; 0: by size.
        groups: a number of groups, or lists of variables whose gradients share a bucket.
        process_set: whose ranks take part; all if None. On other ranks gradients stay as they are.
        scale_local_gradients: divide the gradients of local variables (``register_local_var``) by the number of
            ranks.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported; says which. Or it is called in the
            scope of a ``tf.distribute`` strategy.
        InvalidArgumentError: `optimizer` is distributed already.
    """
    del device_dense, device_sparse
    options = GradientOptions.checked(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        scale_local_gradients=scale_local_gradients,
        process_set=process_set,
    )
    passes = Passes(checked_passes(backward_passes_per_step), average_aggregated_gradients)
    return distribute(optimizer, options, name, passes)


def PartialDistributedOptimizer(  # noqa: N802  # Horovod's name
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
    groups: Any = None,
    process_set: ProcessSet | None = None,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As :func:`DistributedOptimizer`, but some layers stay each rank's own.

    Args:
        optimizer: as there, like the other arguments.
        name: of the new optimizer.
        device_dense: Horovod's; without effect.
        device_sparse: Horovod's; without effect.
        compression: how dense gradients travel.
        sparse_as_dense: turn IndexedSlices into dense tensors first.
        gradient_predivide_factor: divide by it before the sum, multiply by it after; Average only.
        op: Average (default) or Sum.
        backward_passes_per_step: how many passes make one update.
        average_aggregated_gradients: take the mean of those passes instead of their sum.
        groups: a number of groups, or lists of variables whose gradients share a bucket.
        process_set: whose ranks take part; all if None.
        local_layers: a layer or a list of them; they may be built later. A broadcast of initial weights has to leave
            their variables out, too (``local_variables`` of the callback).
        scale_local_gradients: divide the gradients of these layers by the number of ranks.
    """
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    state = distributed_part(made)
    if state is None:
        raise InternalError("a distributed optimizer has no state")
    state.local.add_layers(local_layers)
    return made


@dataclass(frozen=True)
class Passes:
    """How many backward passes make an update, and whether it takes their mean or their sum."""

    count: int = 1
    average: bool = False


def distribute(optimizer: Any, options: GradientOptions, name: str | None, passes: Passes) -> Any:
    """See :func:`DistributedOptimizer`."""
    if distributed_part(optimizer) is not None:
        raise InvalidArgumentError("optimizer: it is a DistributedOptimizer already")
    adapter.check_backend(tf.keras)
    refuse_strategy("DistributedOptimizer")
    if hasattr(optimizer, "inner_optimizer"):
        return _distribute_inner(optimizer, options, name, passes)
    kind: Any = _distributed_class(type(optimizer))
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    rate = getattr(optimizer, "_learning_rate", None)
    if callable(rate) and not hasattr(rate, "get_config"):
        config["learning_rate"] = rate  # a function: not every one survives a config
    state = OptimizerState(options, _values(optimizer))
    _aggregate(state, kind, config, passes)
    made = kind.from_config(config)
    object.__setattr__(made, ATTRIBUTE, state)
    for attribute in _KEPT_ATTRIBUTES:
        if attribute in vars(optimizer):
            setattr(made, attribute, vars(optimizer)[attribute])
    return made


def _aggregate(state: OptimizerState, kind: type, config: dict[str, Any], passes: Passes) -> None:
    """Makes an optimizer with this state and this configuration add up so many passes.

    Keras 3 does it itself, and takes the mean. The number becomes part of the configuration, so a new optimizer is
    needed: state of the old one has no accumulators, and would not fit.
    """
    if passes.count == 1:
        return
    if not issubclass(kind, Keras3Mixin):
        state.aggregation = GradientAggregation(passes.count, passes.average)
        return
    if config.get("gradient_accumulation_steps"):
        raise InvalidArgumentError("backward_passes_per_step: the optimizer has gradient_accumulation_steps already")
    if state.saved:
        raise InvalidArgumentError("backward_passes_per_step: wrap the optimizer before it is built")
    config["gradient_accumulation_steps"] = passes.count
    state.factor = 1.0 if passes.average else float(passes.count)


def _distribute_inner(scaler: Any, options: GradientOptions, name: str | None, passes: Passes) -> Any:
    """A LossScaleOptimizer like `scaler` around a distributed optimizer."""
    if passes.count > 1 and not hasattr(scaler.inner_optimizer, "_backend_apply_gradients"):
        raise UnsupportedError("backward_passes_per_step: not with a LossScaleOptimizer of Keras 2")
    config = scaler.get_config()
    config.pop("inner_optimizer")
    inner = distribute(scaler.inner_optimizer, options, name, passes)
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
