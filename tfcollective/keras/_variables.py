"""A compiled model's variables, by what has to happen to them when ranks are made equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfcollective.keras._optimizers import optimizers_of
from tfcollective.tensorflow._derived import derive_anew, derived_tensors, same_values
from tfcollective.tensorflow._gradients import variable_key


def layers_of(model: Any) -> list[Any]:
    """The layers of a model, also those inside of others."""
    flatten = getattr(model, "_flatten_layers", None)
    return [] if flatten is None else list(flatten(include_self=False))


@contextmanager
def assigned_weights(models: Sequence[Any]) -> Iterator[None]:
    """Lets a block assign the weights of models; afterwards their layers compute with them.

    A layer may keep tensors that it has derived from its weights, and a traced function the tensors of its trace: the
    functions of ``fit``, ``evaluate`` and ``predict`` are then made again.
    """
    before = [derived_tensors(layers_of(model)) for model in models]
    yield
    for model, tensors in zip(models, before, strict=True):
        derive_anew(layers_of(model))
        if not same_values(tensors, derived_tensors(layers_of(model))):
            _forget_traces(model)


def _forget_traces(model: Any) -> None:
    if getattr(model, "train_function", None) is not None:  # fit may be running, and calls it in its next step
        model.make_train_function(force=True)
    for name in ("test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def build_optimizer(model: Any) -> None:
    """Makes the variables of the optimizer of ``compile``, if it has not got them yet and has a way to."""
    optimizer: Any = getattr(model, "optimizer", None)
    if getattr(optimizer, "built", False) or not model.trainable_variables:
        return
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):  # legacy optimizers; makes only what they do not have
        optimizer._create_all_weights(model.trainable_variables)


def is_built(optimizer: Any) -> bool:
    """True if an optimizer has its variables; always for legacy ones, which do not know."""
    return hasattr(optimizer, "get_slot_names") or bool(
        getattr(optimizer, "built", getattr(optimizer, "_built", False))
    )


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of Keras 2 or 3, each once; none if there is no optimizer."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return distinct([*(variables() if callable(variables) else variables), *loss_scale_variables(optimizer)])


def optimizers_variables(model: Any) -> list[Any]:
    """The variables of all optimizers of a model, each once, in the same order on all ranks."""
    return distinct([v for optimizer in optimizers_of(model).values() for v in optimizer_variables(optimizer)])


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """The loss scale of a LossScaleOptimizer and its count of steps, if it has them yet."""
    state = getattr(optimizer, "_loss_scale", None)  # Keras 2, which does not count them as the optimizer's
    found = [getattr(state, name, None) for name in ("current_loss_scale", "counter")]
    if hasattr(optimizer, "inner_optimizer") and state is None:
        found = [getattr(optimizer, name, None) for name in ("dynamic_scale", "step_counter")]
    return [variable for variable in found if variable is not None]


def trained_variables(optimizer: Any, weights: Sequence[Any]) -> list[int]:
    """The places among `weights` of the variables that an optimizer was built for, in its order.

    Empty for one that is not built, and for legacy ones, which build themselves.
    """
    known = getattr(optimizer, "_trainable_variables_indices", None) or getattr(optimizer, "_index_dict", None)
    if not known:  # a LossScaleOptimizer of Keras 2 leaves it to the one inside
        inner: Any = getattr(optimizer, "inner_optimizer", None)
        return [] if inner is None else trained_variables(inner, weights)
    key_of = optimizer._var_key
    places = [place for place, weight in enumerate(weights) if key_of(weight) in known]
    return sorted(places, key=lambda place: int(known[key_of(weights[place])]))


def distinct(variables: Sequence[Any]) -> list[Any]:
    """The variables, each once."""
    return list({variable_key(variable): variable for variable in variables}.values())
