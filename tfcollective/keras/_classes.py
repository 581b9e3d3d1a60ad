"""The classes of distributed optimizers, and how an optimizer becomes one of them, or a copy of one."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective.keras._attributes import lost
from tfcollective.keras._keras2 import Keras2LegacyMixin, Keras2Mixin, check_methods
from tfcollective.keras._keras3 import Keras3Mixin, check_hooks
from tfcollective.keras._mixin import own_methods
from tfcollective.keras._state import ATTRIBUTE, OptimizerState, state_of

_LOG = get_logger(__name__)
# The methods that gradients pass on their way to the update, and those that change one variable.
_ON_THE_WAY = ("apply_gradients", "apply", "_backend_apply_gradients")
_UPDATES = ("update_step", "_resource_apply_dense", "_resource_apply_sparse")
_classes: dict[type, type] = {}


def distributed_class(kind: Any) -> type:
    """The class of distributed optimizers of class `kind`; saved under the name by which Keras knows `kind`.

    Raises:
        UnsupportedError: `kind` is not a class of optimizers, or of some that cannot be distributed.
    """
    if kind in _classes:
        return _classes[kind]
    public = getattr(tf.keras.optimizers, kind.__name__, None) is kind
    content = {
        "__module__": "keras.optimizers" if public else kind.__module__,
        "__doc__": kind.__doc__,
        "__reduce__": _reduce,
        "_tfcollective_reduces_first": bool(own_methods(kind, _ON_THE_WAY)),
        **{name: _checked(getattr(kind, name)) for name in _UPDATES if hasattr(kind, name)},
    }
    mixin = _mixin(kind)
    if mixin is not Keras2LegacyMixin:  # which copies its slots by itself
        content["__deepcopy__"] = _deepcopy
    return _classes.setdefault(kind, _registered_as(kind, type(kind.__name__, (mixin, kind), content)))


def _registered_as(kind: type, made: type) -> type:
    """Returns `made`, which Keras saves under the name that `kind` was registered by, and loads as `kind`."""
    package, found, name = tf.keras.utils.get_registered_name(kind).partition(">")
    if found:
        for registered in (made, kind):  # the last one is what the name stands for
            tf.keras.utils.register_keras_serializable(package, name)(registered)
    return made


def _mixin(kind: type) -> type:
    if hasattr(kind, "_backend_apply_gradients"):
        check_hooks(kind)
        return Keras3Mixin
    if hasattr(kind, "aggregate_gradients") or hasattr(kind, "_aggregate_gradients"):
        check_methods(kind)
        return Keras2Mixin if hasattr(kind, "aggregate_gradients") else Keras2LegacyMixin
    raise UnsupportedError(f"optimizer: {kind.__module__}.{kind.__name__} is not an optimizer of Keras 2 or Keras 3")


def _checked(update: Any) -> Any:
    """The method that changes one variable, which raises UnsupportedError if nothing is reduced where it is called."""

    @functools.wraps(update)
    def checked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        vars(optimizer)[ATTRIBUTE].check_updating(optimizer)
        return update(optimizer, *args, **kwargs)

    checked.__signature__ = inspect.signature(update)  # type: ignore[attr-defined]  # by which Keras 2 calls it
    return checked


def made_of(optimizer: Any, config: dict[str, Any], state: OptimizerState) -> Any:
    """A distributed optimizer with this configuration and state, of the class of `optimizer`, which stays as it is."""
    made = _made(type(optimizer), config, state)
    vars(made).update(lost(optimizer, made))
    return made


def become_distributed(optimizer: Any, state: OptimizerState) -> None:
    """Makes `optimizer` itself a distributed one; what it has gathered it keeps."""
    object.__setattr__(optimizer, "__class__", distributed_class(type(optimizer)))
    object.__setattr__(optimizer, ATTRIBUTE, state)


def configuration(optimizer: Any) -> dict[str, Any]:
    """Returns a configuration that makes an equal optimizer in this process: ``get_config()``, with the learning rate
    as an object.

    A schedule of the user's own need not have a configuration, nor be registered with Keras.
    """
    with _without_schedule(optimizer) as schedule:
        config = dict(optimizer.get_config())
    if schedule is not None:
        config["learning_rate"] = schedule
    return config


def values_of(optimizer: Any) -> list[Any]:
    """Returns the values of a built optimizer's variables, in order. Empty for a new one."""
    if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        if tf.executing_eagerly() and int(getattr(optimizer, "iterations", 0)) > 0:
            _LOG.warning("the state of a legacy optimizer that has trained is not taken over")
        return []
    return [tf.convert_to_tensor(variable).numpy() for variable in optimizer.variables]


@contextlib.contextmanager
def _without_schedule(optimizer: Any) -> Iterator[Any]:
    """Makes the optimizer's learning rate a number while it is open; gives the schedule, or None if there is none."""
    places: list[tuple[dict[str, Any], str]] = [
        (vars(optimizer), "_learning_rate"),
        (vars(optimizer).get("_hyper", {}), "learning_rate"),  # of Keras 2's legacy optimizers
    ]
    for held, name in places:
        rate = held.get(name)
        if callable(rate) and not hasattr(rate, "assign"):  # a variable is none of these
            held[name] = 0.0
            try:
                yield rate
            finally:
                held[name] = rate
            return
    yield None


def _made(kind: type, config: dict[str, Any], state: OptimizerState) -> Any:
    try:
        made = distributed_class(kind).from_config(config)  # type: ignore[attr-defined]
    except TypeError as error:
        raise UnsupportedError(
            f"DistributedOptimizer: no {kind.__name__} can be made of the configuration of another one ({error}): its "
            "__init__ must take what its get_config returns, or it must have a from_config"
        ) from error
    object.__setattr__(made, ATTRIBUTE, state)
    iterations: Any = getattr(made, "_iterations", None)
    if state.saved and hasattr(iterations, "assign"):
        iterations.assign(state.saved[0])
    return made


def _plain_class(optimizer: Any) -> type:
    return next(kind for kind, made in _classes.items() if made is type(optimizer))


def _deepcopy(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Replaces ``__deepcopy__``: a copy that may be used for other variables, or continue with the same ones."""
    config = copy.deepcopy(configuration(optimizer), memo)
    state: OptimizerState = vars(optimizer)[ATTRIBUTE]
    made = _made(_plain_class(optimizer), config, state.copy(values_of(optimizer)))
    memo[id(optimizer)] = memo[id(made)] = made  # also for methods that are bound to it
    vars(made).update({name: copy.deepcopy(value, memo) for name, value in lost(optimizer, made).items()})
    return made


def _reduce(optimizer: Any) -> tuple[Any, ...]:
    """Replaces ``__reduce__``: pickled as what makes such an optimizer."""
    state = state_of(optimizer)
    assert state is not None
    if state.local.keys() or state.options.groups:
        raise UnsupportedError(
            "a DistributedOptimizer with local variables or groups of variables cannot be pickled without its model: "
            "pickle the model, or make the optimizer again"
        )
    arguments = {
        "options": state.options,
        "passes": state.passes,
        "saved": values_of(optimizer),
        "divided": state.divided,
    }
    kind, config = _plain_class(optimizer), configuration(optimizer)
    attributes = lost(optimizer, _made(kind, config, state.copy()))
    return _unpickled, (kind, config, arguments, attributes)


def _unpickled(kind: type, config: dict[str, Any], arguments: dict[str, Any], attributes: dict[str, Any]) -> Any:
    made = _made(kind, config, OptimizerState(**arguments))
    vars(made).update(attributes)
    return made
