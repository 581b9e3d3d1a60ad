"""Copies of what holds distributed optimizers: models, and optimizers that wrap others.

Keras makes them from configurations, in which a distributed optimizer has its plain name, so that files load without
tfcollective. So what was distributed is remembered beside the configuration, and the copy's optimizers become so again:

* ``copy.deepcopy`` and ``pickle`` of a model, and of a LossScaleOptimizer or MultiOptimizer (Keras 3);
* ``clone_model`` and ``compile_from_config(get_compile_config())``;
* ``from_config(get_config())`` of a LossScaleOptimizer or MultiOptimizer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcollective._base.errors import UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective.keras._classes import become_distributed
from tfcollective.keras._mixin import Carrying
from tfcollective.keras._optimizers import distributed_states, innermost, is_optimizer
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.keras._yaml_dictionaries import YamlDictionary
from tfcollective.tensorflow._aggregation import Passes
from tfcollective.tensorflow._gradients import GradientOptions, variable_key

_LOG = get_logger(__name__)


def install(keras: Any) -> None:
    """Changes `keras` (the module) so that copies reduce; once a process. Others are copied as ever."""
    replace_method(keras.Model, "__reduce__", _reduce)
    if "__deepcopy__" in _names(keras.Model):  # Keras 2
        replace_method(keras.Model, "__deepcopy__", _deepcopy)
    replace_method(keras.Model, "get_compile_config", _get_compile_config)
    replace_method(keras.Model, "compile_from_config", _compile_from_config)
    for kind in _wrapping_kinds(keras):
        replace_method(kind, "get_config", _get_config)
        _replace_from_config(kind)


def _wrapping_kinds(keras: Any) -> list[Any]:
    """The classes of optimizers that hold others. Keras 2's public LossScaleOptimizer makes one of its subclasses."""
    rooms = (keras.optimizers, keras.mixed_precision)
    public = [getattr(room, name, None) for room in rooms for name in ("LossScaleOptimizer", "MultiOptimizer")]
    kinds = {sub for kind in public if kind is not None for sub in (kind, *kind.__subclasses__())}
    return [kind for kind in kinds if "from_config" in vars(kind)]


@dataclass(frozen=True)
class _Recipe:
    """A state whose variables are named by their places among the model's weights."""

    options: GradientOptions
    passes: Passes
    groups: tuple[tuple[int, ...], ...]
    local: tuple[int, ...]
    divided: bool


def _recipe(state: OptimizerState, weights: Sequence[Any]) -> _Recipe:
    places = {variable_key(weight): place for place, weight in enumerate(weights)}
    groups = [[variable_key(variable) for variable in group] for group in state.options.groups]
    local = state.local.keys()
    unknown = [key for key in (*local, *(key for group in groups for key in group)) if key not in places]
    if unknown:
        raise UnsupportedError(
            "a model whose DistributedOptimizer has local variables, or groups of variables, that are not the model's "
            "weights cannot be copied: compile the copy with a DistributedOptimizer of its own"
        )
    grouped = tuple(tuple(places[key] for key in group) for group in groups)
    mine = tuple(sorted(places[key] for key in local))
    return _Recipe(replace(state.options, groups=()), state.passes, grouped, mine, state.divided)


def _cooked(recipe: _Recipe, weights: Sequence[Any]) -> OptimizerState:
    wanted = [*recipe.local, *(place for group in recipe.groups for place in group)]
    if wanted and max(wanted) >= len(weights):
        raise UnsupportedError(
            "the copy of the model has no weights yet that could stay each rank's own: build it, and compile it with a "
            "DistributedOptimizer of its own"
        )
    groups = tuple(tuple(weights[place] for place in group) for group in recipe.groups)
    state = OptimizerState(replace(recipe.options, groups=groups), recipe.passes, divided=recipe.divided)
    for place in recipe.local:
        state.local.add(weights[place])
    return state


def _weights(thing: Any) -> Sequence[Any]:
    return () if is_optimizer(thing) else thing.weights


def _recipes(thing: Any) -> dict[str, _Recipe]:
    states = distributed_states(thing)
    weights = _weights(thing) if states else ()
    return {place: _recipe(state, weights) for place, state in states.items()}


def _take_over(made: Any, recipes: dict[str, _Recipe]) -> Any:
    """Makes the optimizers of the copy `made` distributed where the original's were; returns it."""
    found = innermost(made) if recipes else {}
    for place, recipe in recipes.items():
        optimizer = found.get(place)
        if optimizer is None:
            _LOG.warning("the copy of a model has no %s: compile it with a DistributedOptimizer", place)
        elif state_of(optimizer) is None:
            become_distributed(optimizer, _cooked(recipe, _weights(made)))
    return made


def _unpickled(make: Callable[..., Any], arguments: tuple[Any, ...], recipes: dict[str, _Recipe]) -> Any:
    return _take_over(make(*arguments), recipes)


def _reduce(original: Callable[..., Any], thing: Any) -> Any:
    """Reduces to (function, arguments) where Keras saves into bytes, which lose them; longer forms hold them as
    objects.
    """
    reduced = original(thing)
    recipes = _recipes(thing) if len(reduced) == 2 else {}
    return (_unpickled, (*reduced, recipes)) if recipes else reduced


def _deepcopy(original: Callable[..., Any], model: Any, memo: dict[int, Any]) -> Any:
    return _take_over(original(model, memo), _recipes(model))


class _CompileConfig(YamlDictionary):
    """The arguments of ``compile``, and in this process the distributed optimizer."""

    recipes: dict[str, _Recipe]


def _get_compile_config(original: Callable[..., Any], model: Any) -> Any:
    config = original(model)
    states = distributed_states(getattr(model, "optimizer", None))
    if not states or not isinstance(config, dict):
        return config
    carrying = _CompileConfig(config)
    carrying.recipes = {f"optimizer{place}": _recipe(state, model.weights) for place, state in states.items()}
    return carrying


def _compile_from_config(original: Callable[..., Any], model: Any, config: Any) -> Any:
    result = original(model, config)
    if isinstance(config, _CompileConfig):
        _take_over(model, config.recipes)
    return result


def _get_config(original: Callable[..., Any], optimizer: Any) -> Any:
    config, states = original(optimizer), distributed_states(optimizer)
    return Carrying(config, states) if states else config


def _replace_from_config(kind: Any) -> None:
    original = vars(kind)["from_config"].__func__

    @functools.wraps(original)
    def from_config(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, dict(config), *args, **kwargs)
        found = innermost(made)
        for place, state in config.states.items() if isinstance(config, Carrying) else ():
            if place in found and state_of(found[place]) is None:
                become_distributed(found[place], state.copy())
        return made

    kind.from_config = classmethod(from_config)


def _names(kind: type) -> set[str]:
    return {name for owner in kind.__mro__ for name in vars(owner)}


def replace_method(kind: type, method: str, wrapper: Callable[..., Any], argument: str | None = None) -> bool:
    """Puts `wrapper`, which is called with the original first, for a method in the class that defines it.

    Returns False, and changes nothing, where this version of Keras has no such method with this argument.
    """
    owner = next((c for c in kind.__mro__ if method in vars(c) and c is not object), None)
    original = None if owner is None else vars(owner)[method]
    if original is None or (argument is not None and argument not in inspect.signature(original).parameters):
        return False

    @functools.wraps(original)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(owner, method, replacement)
    return True
