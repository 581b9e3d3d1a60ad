"""The places where Keras has to know of us and offers no hook: all that this package changes in Keras.

It is changed when ``tfcollective.keras`` is imported. The first optimizer would be too late: Python looks up
``model.compile`` before it makes the optimizer in ``model.compile(optimizer=DistributedOptimizer(...))``.

* ``Model.compile``: XLA cannot compile our ops, and Keras 3's ``jit_compile="auto"`` means True as soon as it sees an
  accelerator. With a distributed optimizer "auto" becomes False, and an explicit True an error. Horovod's pages give
  ``experimental_run_tf_function=False``, which Keras 3 does not know: with a distributed optimizer it is taken away.
* Keras 3's ``LossScaleOptimizer.check_finite``: it decides by the local gradients whether the optimizer inside is
  called at all; with a distributed one inside all ranks have to decide alike. (Keras 2 aggregates before it decides.)
* Keras 3's ``optimizer.variables``: the list may be called, as in Keras 2 and in scripts written for Horovod. A
  ``DistributedGradientTape`` sees to it, too.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.communicator import Min
from tfcollective.errors import ConfigError
from tfcollective.keras.state import distributed_part, state_of
from tfcollective.log import get_logger
from tfcollective.tensorflow.functions import allreduce
from tfcollective.tensorflow.keras_variables import let_variables_be_called

__all__ = ["check_backend", "install"]

_LOG = get_logger(__name__)
_lock = threading.Lock()
_installed = False


def install(keras: Any) -> None:
    """Changes `keras` (the module), once a process. Without a distributed optimizer everything stays as it was."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    _wrap(keras.Model, "compile", "jit_compile", _compile)
    let_variables_be_called()
    scaler = getattr(keras.optimizers, "LossScaleOptimizer", None)
    if scaler is not None and hasattr(scaler, "apply"):
        _wrap(scaler, "check_finite", "grads", _check_finite)


def check_backend(keras: Any) -> None:
    """Raises ConfigError if this is Keras 3 over another backend than TensorFlow."""
    config: Any = getattr(keras, "config", None)
    backend = config.backend() if hasattr(config, "backend") else "tensorflow"
    if backend != "tensorflow":
        raise ConfigError(f"Keras runs on {backend}; tfcollective needs KERAS_BACKEND=tensorflow")


def _wrap(kind: type, method: str, argument: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a method in the class that defines it, if it still has the argument that we know."""
    owner = next((c for c in kind.__mro__ if method in vars(c)), None)
    original = vars(owner)[method] if owner is not None else None
    if original is None or argument not in inspect.signature(original).parameters:
        _LOG.warning(
            "%s.%s is not as expected in this Keras version: use jit_compile=False and no LossScaleOptimizer",
            kind.__name__,
            method,
        )
        return

    @functools.wraps(original)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(owner, method, replacement)


def _communicates() -> bool:
    return not runtime.is_initialized() or runtime.size() > 1


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if distributed_part(kwargs.get("optimizer")) is not None:
        kwargs.pop("experimental_run_tf_function", None)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    if distributed_part(bound.arguments.get("optimizer")) is None or not _communicates():
        return original(model, *args, **kwargs)
    if bound.arguments["jit_compile"] == "auto":
        bound.arguments["jit_compile"] = False
        _LOG.info('jit_compile="auto" means False with a distributed optimizer')
    elif bound.arguments["jit_compile"]:
        raise ConfigError(
            "jit_compile=True: XLA cannot compile a training step that communicates. "
            "Compile with jit_compile=False, or leave it at its default, with a DistributedOptimizer."
        )
    return original(*bound.args, **bound.kwargs)


def _check_finite(original: Callable[..., Any], scaler: Any, grads: Any) -> Any:
    finite = original(scaler, grads)
    state = state_of(scaler.inner_optimizer)
    if state is None or not _communicates():
        return finite
    process_set = state.options.process_set
    if not runtime.members(process_set, outside=True).included:
        return finite
    agreed = allreduce(tf.cast(finite, tf.uint8), op=Min, name=f"{state.scope}/finite", process_set=process_set)
    return tf.cast(agreed, tf.bool)
