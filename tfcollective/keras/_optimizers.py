"""The optimizers of a model: that of ``compile``, and those that a ``train_step`` of its own uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfcollective.keras._state import OptimizerState, state_of

INSTEAD_OF = "_tfcollective_instead_of"  # of a training step of ours: the object's own, or None
# What Keras keeps of the arguments of compile, to save them.
_ARGUMENTS = ("_compile_config",)


def optimizers_of(model: Any) -> dict[str, Any]:
    """The optimizers that a model and its layers hold, also in lists and dictionaries, each once.

    Returns:
        By the place ("optimizer", "d_optimizer", "layers[1].optimizer"), the same for a copy of the model; that of
        ``compile`` first, the others in an order that all ranks have.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for prefix, owner in _owners(model):
        for place, optimizer in _held(owner):
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                found[f"{prefix}{place}"] = optimizer
    return found


def innermost(thing: Any) -> dict[str, Any]:
    """Returns the optimizers of a model, or of one optimizer, by place: for one that wraps others, those inside."""
    if not is_optimizer(thing):
        return {
            f"{place}{inner}": optimizer
            for place, held in optimizers_of(thing).items()
            for inner, optimizer in innermost(held).items()
        }
    parts = {} if state_of(thing) is not None else _parts(thing)
    if not parts:
        return {"": thing}
    return {
        f"{place}{inner}": optimizer for place, part in parts.items() for inner, optimizer in innermost(part).items()
    }


def distributed_states(thing: Any) -> dict[str, OptimizerState]:
    """The states of the distributed ones among :func:`innermost`, by place; none of None."""
    if thing is None:
        return {}
    states = {place: state_of(optimizer) for place, optimizer in innermost(thing).items()}
    return {place: state for place, state in states.items() if state is not None}


def is_optimizer(thing: Any) -> bool:
    """True for an optimizer of Keras 3 or Keras 2."""
    return isinstance(thing, _kinds())


def train_step_is_own(model: Any) -> bool:
    """True if the model has a training step of its own, which may use a ``DistributedGradientTape``: that of its class,
    or one that the script has given to the object."""
    names = ("train_step", "make_train_function")
    given = [getattr(model, "__dict__", {}).get(name) for name in names]
    return any(getattr(one, INSTEAD_OF, one) is not None for one in given) or any(
        getattr(type(model), name, None) is not getattr(tf.keras.Model, name, None) for name in names
    )


def _kinds() -> tuple[type, ...]:
    legacy = getattr(getattr(tf.keras.optimizers, "legacy", None), "Optimizer", None)
    return tuple(kind for kind in (tf.keras.optimizers.Optimizer, legacy) if isinstance(kind, type))


def _owners(model: Any) -> Iterator[tuple[str, Any]]:
    """The model, then its layers, which may be models that were compiled."""
    yield "", model
    flatten = getattr(model, "_flatten_layers", None)
    for index, layer in enumerate(flatten(include_self=False) if flatten is not None else ()):
        yield f"layers[{index}].", layer


def _held(owner: Any) -> Iterator[tuple[str, Any]]:
    held = getattr(owner, "__dict__", {})
    for name in sorted(held, key=lambda name: (name != "optimizer", name.startswith("_"), name)):
        if name not in _ARGUMENTS:
            yield from _within(name, held[name])


def _within(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_optimizer(value):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _within(f"{place}[{index}]", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _within(f"{place}[{key!r}]", item)


def _parts(optimizer: Any) -> dict[str, Any]:
    """Returns the parts of an optimizer that wraps others: LossScaleOptimizer, MultiOptimizer, one with an average."""
    several = getattr(optimizer, "optimizers", None)  # Keras 3's MultiOptimizer
    if isinstance(several, list | tuple):
        return {f".optimizers[{index}]": part for index, part in enumerate(several) if is_optimizer(part)}
    for name in ("inner_optimizer", "_optimizer"):
        part = getattr(optimizer, name, None)
        if is_optimizer(part):
            return {f".{name}": part}
    return {}
