"""``DistributedOptimizer``: an optimizer of the same class that applies gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.keras import _adapter as adapter
from tfcollective.keras._classes import configuration, distributed_class, made_of, values_of
from tfcollective.keras._keras3 import Keras3Mixin
from tfcollective.keras._optimizers import distributed_states, is_optimizer
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.keras._variables import loss_scale_variables
from tfcollective.tensorflow._aggregation import Passes
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._docstrings import documented
from tfcollective.tensorflow._gradients import GradientOptions, refuse_strategy
from tfcollective.tensorflow._replica_check import ReplicaCheck


@documented
def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: Any,
    *,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    replica_check: ReplicaCheck | None = None,
    name: str | None = None,
) -> Any:
    """An optimizer like `optimizer` whose updates use the gradients of all ranks.

    Gradients are reduced exactly once an update: before clipping, weight decay and moving averages, and after the
    accumulation of ``gradient_accumulation_steps``. The result's class has the name and module of Keras's own, so that
    a model saved with it loads where tfcollective is not installed. State that `optimizer` has already is taken over.
    On ranks outside of `process_set` gradients stay as they are. Local variables are those of `local_layers`, which a
    broadcast of initial weights has to leave out, too (``local_variables`` of the callback), and of
    ``register_local_var``.
    Copies of it reduce, too: ``copy.deepcopy``, ``pickle``, ``from_config(get_config())``, and those in a copied model.

    Args:
        optimizer: of Keras 3, or of Keras 2 (also legacy), or its name ("adam"). Of a LossScaleOptimizer the one inside
            is wrapped.
        name: of the new optimizer; that of `optimizer` if None.
        op: Average (default) or Sum.
        backward_passes_per_step: how many passes are added up in this process for one reduction and one update.
            Keras 3 does it (``gradient_accumulation_steps`` is set), and ``optimizer.iterations`` counts updates; with
            Keras 2 it counts passes, as with Horovod. A LearningRateSchedule is asked by the number of passes.
        replica_check: which variables are compared between the ranks now and then, and what differences lead to.

    Raises:
        UnsupportedError: an argument, or a kind of optimizer, that is not supported; says which. Or it is called in the
            scope of a ``tf.distribute`` strategy.
        InvalidArgumentError: `optimizer` is no optimizer, or is distributed already.
    """
    passes = Passes(backward_passes_per_step, average_aggregated_gradients)
    made = distribute(optimizer, GradientOptions.checked(locals()), name, passes)
    for state in distributed_states(made).values():
        state.local.add_layers(local_layers)
    return made


def distribute(optimizer: Any, options: GradientOptions, name: str | None, passes: Passes) -> Any:
    """See :func:`DistributedOptimizer`."""
    optimizer = _given(optimizer)
    if is_optimizer(optimizer) and distributed_states(optimizer):
        raise InvalidArgumentError("optimizer: it is a DistributedOptimizer already")
    adapter.check_backend(tf.keras)
    refuse_strategy("DistributedOptimizer")
    if hasattr(optimizer, "inner_optimizer"):
        return _distribute_inner(optimizer, options, name, passes)
    kind = distributed_class(type(optimizer))
    config = configuration(optimizer)
    if name is not None:
        config["name"] = name
    values = values_of(optimizer)
    by_keras = passes.count > 1 and issubclass(kind, Keras3Mixin)
    if by_keras:
        _let_keras_accumulate(config, passes, values)
    return made_of(optimizer, config, OptimizerState(options, replace(passes, by_keras=by_keras), values))


def _given(optimizer: Any) -> Any:
    """The optimizer, where a name or a configuration of one is given.

    Raises:
        InvalidArgumentError: it is none.
        UnsupportedError: it is of another Keras than that of TensorFlow, which this package works with.
    """
    if isinstance(optimizer, str | dict):
        return tf.keras.optimizers.get(optimizer)
    if isinstance(optimizer, type) or not hasattr(optimizer, "apply_gradients"):
        what = f"the class {optimizer.__name__}: call it" if isinstance(optimizer, type) else repr(optimizer)
        raise InvalidArgumentError(f'optimizer: expected an optimizer or its name, such as "adam", got {what}')
    if not is_optimizer(optimizer) and any(kind.__module__.startswith("tf_keras.") for kind in type(optimizer).__mro__):
        raise UnsupportedError(
            f"optimizer: {type(optimizer).__name__} is of tf_keras (Keras 2), and tf.keras is not: "
            "set TF_USE_LEGACY_KERAS=1 in the environment before TensorFlow is imported"
        )
    return optimizer


def _let_keras_accumulate(config: dict[str, Any], passes: Passes, values: Sequence[Any]) -> None:
    """The number becomes part of the configuration, so a new optimizer is needed: state of the old one has no
    accumulators, and would not fit."""
    if config.get("gradient_accumulation_steps"):
        raise InvalidArgumentError("backward_passes_per_step: the optimizer has gradient_accumulation_steps already")
    if values:
        raise InvalidArgumentError("backward_passes_per_step: wrap the optimizer before it is built")
    config["gradient_accumulation_steps"] = passes.count


def _distribute_inner(scaler: Any, options: GradientOptions, name: str | None, passes: Passes) -> Any:
    """A LossScaleOptimizer like `scaler`, with its loss scale, around a distributed optimizer."""
    if passes.count > 1 and not hasattr(scaler.inner_optimizer, "_backend_apply_gradients"):
        raise UnsupportedError("backward_passes_per_step: not with a LossScaleOptimizer of Keras 2")
    config = scaler.get_config()
    config.pop("inner_optimizer")
    values = [tf.convert_to_tensor(variable).numpy() for variable in loss_scale_variables(scaler)]
    if values:
        config["initial_scale"] = float(values[0])  # Keras 3 scales the first traced loss by it
    inner = distribute(scaler.inner_optimizer, options, name, passes)
    made = type(scaler)(inner, **config)

    def restore() -> None:
        for variable, value in zip(loss_scale_variables(made), values, strict=False):  # none while it is not built
            variable.assign(value)

    restore()
    state = state_of(inner)
    if state is not None:
        state.when_built.append(restore)
    return made
