"""Training that reduces nothing is an error where there are several ranks: each would train a model of its own.

It is seen where Keras's optimizers make an update: ``fit`` and custom loops all come through one method of the class of
all optimizers. When it is first called, in most programs while a step is traced, gradients that are to be reduced have
been: by a distributed optimizer, a tape, or the program's own reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base.errors import StateError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._base.settings import variable
from tfcollective.keras._copies import replace_method
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._state import state_of
from tfcollective.tensorflow import _reductions as reductions
from tfcollective.tensorflow._gradients import variable_key, variable_name

_LOG = get_logger(__name__)
_MOST_NAMED = 3


def install(keras: Any) -> None:
    """Changes the optimizers of `keras` (the module); once a process."""
    for kind in (keras.optimizers.Optimizer, getattr(getattr(keras.optimizers, "legacy", None), "Optimizer", None)):
        if isinstance(kind, type):
            replace_method(kind, "apply" if hasattr(kind, "apply") else "apply_gradients", _update)


def _update(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before = reductions.updates()
    if args:
        args = (list(args[0]), *args[1:])  # gradients, or pairs of them and variables
    result = original(optimizer, *args, **kwargs)
    if state_of(optimizer) is None and args[:1] != ([],) and _is_one_of_several() and reductions.updates() == before:
        gradients, variables = _parts(*args, **kwargs)
        if reductions.are_noted(gradients):
            _check_tapes(variables)
        else:
            _check(optimizer)
    return result


def _parts(
    given: Sequence[Any] = (), trainable_variables: Any = None, *_: Any, **__: Any
) -> tuple[list[Any], list[Any]]:
    """The gradients and the variables of an update, as far as its arguments tell."""
    if given and isinstance(given[0], (tuple, list)):
        return [pair[0] for pair in given], [pair[1] for pair in given]
    return list(given), list(trainable_variables) if isinstance(trainable_variables, (tuple, list)) else []


def _is_one_of_several() -> bool:
    """False also outside of ``elastic.run`` in an elastic job: there each rank may make a first step of its own, as in
    Horovod's examples, before it takes the weights of the others."""
    if not runtime.is_initialized() or not runtime.task().is_trainer or runtime.size() == 1:
        return False
    return runtime.current().trains or not runtime.settings().elastic


def _check_tapes(variables: list[Any]) -> None:
    found = reductions.are_without_tape({variable_key(one): one for one in variables})
    if not found or runtime.rank() != 0 or runtime.settings().local_training:
        return
    names = ", ".join(variable_name(one, i) for i, one in enumerate(variables[:_MOST_NAMED]))
    _LOG.warning(
        "no DistributedGradientTape has taken the gradients with which an optimizer updates %s%s: each of the %d "
        "ranks trains its own values of them. Wrap that tape, too, or if it is meant, set %s=1",
        names,
        ", ..." if len(variables) > _MOST_NAMED else "",
        runtime.size(),
        variable("local_training"),
    )


def _check(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if distributed_states(optimizer):
        raise UnsupportedError(
            f"{name} has made an update without the apply_gradients of the DistributedOptimizer inside it, so nothing "
            f"was reduced. Make the outer one distributed: DistributedOptimizer({name}(...))"
        )
    if not runtime.settings().local_training:
        raise StateError(
            f"the optimizer {name} has applied gradients that were not reduced: each of the "
            f"{runtime.size()} ranks trains a model of its own. Wrap it in tfcollective.keras.DistributedOptimizer "
            "(for a saved model, use tfcollective.keras.load_model), or take the gradients from a "
            f"DistributedGradientTape. If ranks are meant to train alone, set {variable('local_training')}=1"
        )
