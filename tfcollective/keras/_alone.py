"""Training that reduces nothing is an error where there are several ranks: each would train a model of its own.

It is seen where Keras's optimizers make an update: ``fit`` and custom loops all come through one method of the class of
all optimizers. When it is first called, in most programs while a step is traced, gradients that are to be reduced have
been: by a distributed optimizer, a tape, or the program's own reductions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base.errors import StateError, UnsupportedError
from tfcollective._base.settings import variable
from tfcollective.keras._copies import replace_method
from tfcollective.keras._optimizers import distributed_states
from tfcollective.keras._state import state_of
from tfcollective.tensorflow import _reductions as reductions


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
    if state_of(optimizer) is None and args[:1] != ([],) and _is_one_of_several():
        _check(optimizer, before)
    return result


def _is_one_of_several() -> bool:
    """False also outside of ``elastic.run`` in an elastic job: there each rank may make a first step of its own, as in
    Horovod's examples, before it takes the weights of the others."""
    if not runtime.is_initialized() or not runtime.task().is_trainer or runtime.size() == 1:
        return False
    return runtime.trains() or not runtime.settings().elastic


def _check(optimizer: Any, before: int) -> None:
    if reductions.are_noted() or reductions.updates() > before:
        return
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
