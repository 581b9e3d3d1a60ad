"""The places where Keras has to know of us and offers no hook: all that this package changes in Keras.

It is changed when ``tfcollective.keras`` is imported. The first optimizer would be too late: Python looks up
``model.compile`` before it makes the optimizer in ``model.compile(optimizer=DistributedOptimizer(...))``.

* ``Model.compile`` and ``Model.make_train_function``: XLA cannot compile our ops everywhere, and Keras 3's
  ``jit_compile="auto"`` means True as soon as it sees an accelerator, for which there are no compiled calls yet. With a
  distributed optimizer, be it that of ``compile`` or one that the model holds when training begins, "auto" becomes
  False, and an explicit True an error where compiled programs cannot communicate. With a ``train_step`` of its own,
  which may communicate, "auto" becomes False, too, as soon as there are several ranks. Horovod's pages give
  ``experimental_run_tf_function=False``, which Keras 3 does not know: with a distributed optimizer it is taken away.
* Keras 3's ``LossScaleOptimizer.check_finite``: it decides by the local gradients whether the optimizers inside are
  called at all; with distributed ones inside all ranks have to decide alike. (Keras 2 aggregates before it decides.)
* What makes copies of models and of optimizers that wrap others: see ``tfcollective.keras._copies``.
* ``Model.fit``: with an ``Elastic`` among the callbacks it is called again when ranks come and go: see
  ``tfcollective.keras._elastic_fit``. Where several ranks train together it has a callback of ours before the user's:
  see ``tfcollective.keras._together``.
* ``Model.evaluate``: with a ``MetricAverageCallback`` among the callbacks it returns the metrics of all ranks. Keras
  gives callbacks a copy of what it returns.
* Keras 3's ``optimizer.variables``: the list may be called, as in Keras 2 and in scripts written for Horovod. A
  ``DistributedGradientTape`` sees to it, too.
* Keras 3's optimizers have ``lr``, as those of Keras 2: TensorFlow's variable that holds the learning rate, as
  ``tf.keras.backend.set_value`` takes it. Horovod's elastic examples set it when the world has changed.
* ``BatchNormalization(synchronized=True)`` takes its moments over all ranks: see ``tfcollective.keras._normalization``.
* Optimizers in an elastic job: their updates make new buffers, since a commit holds the old ones: see
  ``tfcollective.keras._new_buffers``.
* What ``fit`` iterates over: rows are sampled, see ``tfcollective.keras._row_sample``.
* Optimizers whose gradients no rank has reduced: their first update is an error, see ``tfcollective.keras._alone``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._runtime.communicator import Min
from tfcollective.keras import _alone as alone
from tfcollective.keras import _copies as copies
from tfcollective.keras import _new_buffers as new_buffers
from tfcollective.keras import _row_sample as row_sample
from tfcollective.keras._elastic_fit import elastic_callback, fit_elastically
from tfcollective.keras._global_mean import weigh_by_loss
from tfcollective.keras._normalization import synchronize_keras
from tfcollective.keras._optimizers import distributed_states, is_optimizer, train_step_is_own
from tfcollective.keras._parallel import mode, training
from tfcollective.keras._parallel.results import values_in_order
from tfcollective.keras._synchronisation import MetricAverageCallback
from tfcollective.keras._together import added_callback, together
from tfcollective.tensorflow import _reductions as reductions
from tfcollective.tensorflow._functions import allreduce
from tfcollective.tensorflow._ops import xla_problem
from tfcollective.tensorflow._variables import let_variables_be_called

_LOG = get_logger(__name__)
_ASKED = "_tfcollective_asked_for_jit"  # of a model: that compile was given jit_compile=True
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
    _wrap(keras.Model, "make_train_function", "force", _make_train_function)
    replace_method = mode.noting(copies.replace_method)
    replace_method(keras.Model, "fit", _fit, "initial_epoch")
    replace_method(keras.Model, "train_on_batch", _train_on_batch)
    replace_method(keras.Model, "evaluate", _evaluate, "return_dict")
    copies.install(keras)
    synchronize_keras(replace_method)
    let_variables_be_called()
    _add_lr(keras.optimizers.Optimizer)
    new_buffers.install(keras)
    alone.install(keras)
    row_sample.install(keras, copies.replace_method)
    training.install(keras, copies.replace_method)
    replace_method(keras.Model, "predict", _predict)
    scaler = getattr(keras.optimizers, "LossScaleOptimizer", None)
    if scaler is not None and hasattr(scaler, "apply"):
        _wrap(scaler, "check_finite", "grads", _check_finite)


def _add_lr(kind: Any) -> None:
    """Does nothing with Keras 2, which has it."""
    if hasattr(kind, "lr") or not hasattr(kind, "apply"):
        return
    doc = "Another name for ``learning_rate``, added by tfcollective."
    kind.lr = property(_learning_rate_of, _set_learning_rate, doc=doc)


def _learning_rate_of(optimizer: Any) -> Any:
    rate = optimizer.learning_rate
    return getattr(rate, "value", rate)  # of a schedule it is a tensor


def _set_learning_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate


def check_backend(keras: Any) -> None:
    """Raises ConfigError if this is Keras 3 over another backend than TensorFlow."""
    config: Any = getattr(keras, "config", None)
    backend = config.backend() if hasattr(config, "backend") else "tensorflow"
    if backend != "tensorflow":
        raise ConfigError(f"Keras runs on {backend}; tfcollective needs KERAS_BACKEND=tensorflow")


def _wrap(kind: type, method: str, argument: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a method if it still has the argument that we know."""
    if not copies.replace_method(kind, method, wrapper, argument):
        _LOG.warning(
            "%s.%s is not as expected in this Keras version: use jit_compile=False and no LossScaleOptimizer",
            kind.__name__,
            method,
        )


def _communicates() -> bool:
    return not runtime.is_initialized() or runtime.size() > 1 or runtime.settings().elastic


def _is_distributed(optimizer: Any) -> bool:
    return is_optimizer(optimizer) and bool(distributed_states(optimizer))


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_distributed(kwargs.get("optimizer")):
        kwargs.pop("experimental_run_tf_function", None)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    asked = bound.arguments["jit_compile"]
    object.__setattr__(model, _ASKED, asked is True)
    if not _is_distributed(bound.arguments.get("optimizer")) or not _communicates():
        return original(model, *args, **kwargs)
    if asked == "auto":
        bound.arguments["jit_compile"] = False
        _LOG.info('jit_compile="auto" means False with a distributed optimizer')
    elif asked and runtime.is_initialized():
        _check_jit()
    return original(*bound.args, **bound.kwargs)


def _check_jit() -> None:
    found = xla_problem()
    if found:
        raise ConfigError(
            f"jit_compile=True: XLA cannot compile a training step that communicates: {found}. Compile with "
            "jit_compile=False, or leave it at its default, with a DistributedOptimizer."
        )


def _make_train_function(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(model, "jit_compile", False) and runtime.is_initialized() and _communicates():
        distributed, asked = bool(distributed_states(model)), getattr(model, _ASKED, False)
        if distributed and asked:
            _check_jit()
        elif distributed or (train_step_is_own(model) and not asked):
            model.jit_compile = False
            _LOG.info("jit_compile is False, as this training step may communicate")
    weigh_by_loss(model)
    return original(model, *args, **kwargs)


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    _, *names = bound.arguments
    arguments = {name: bound.arguments[name] for name in names}
    division = mode.active()
    if division is not None:
        return training.fit(functools.partial(_fit_together, original), model, arguments, division)
    return _fit_together(original, model, **arguments)


def _fit_together(original: Callable[..., Any], model: Any, **arguments: Any) -> Any:
    options = elastic_callback(arguments["callbacks"])
    ours = together(model, arguments, elastic=options is not None)
    sample = None if ours is None else ours.sample
    training_ = reductions.training(own_step=train_step_is_own(model))
    with training_, added_callback(model, arguments, ours), row_sample.sampling(sample):
        if options is None:
            return original(model, **arguments)
        average = (lambda _: None) if ours is None else ours.average
        return fit_elastically(original, model, arguments, options, average)


def _train_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    division = mode.active()
    with reductions.training(own_step=train_step_is_own(model)):
        if division is not None:
            return training.train_on_batch(original, model, _arguments(original, model, *args, **kwargs), division)
        return original(model, *args, **kwargs)


def _predict(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    division = mode.active()
    if division is None:
        return original(model, *args, **kwargs)
    return training.predict(original, model, _arguments(original, model, *args, **kwargs), division)


def _arguments(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments by name, without the model."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    named = dict(list(bound.arguments.items())[1:])
    more = named.pop("kwargs", {})
    return {**named, **more}


def _evaluate(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    division = mode.active()
    if division is not None:
        return training.evaluate(original, model, _arguments(original, model, *args, **kwargs), division)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments.get("callbacks")
    if isinstance(given, tf.keras.callbacks.CallbackList):  # that of fit
        return original(model, *args, **kwargs)
    average = next((one for one in tf.nest.flatten(given) if isinstance(one, MetricAverageCallback)), None)
    if average is None:
        return original(model, *args, **kwargs)
    as_dictionary = bound.arguments.get("return_dict", False)
    bound.arguments["return_dict"] = True
    logs = original(*bound.args, **bound.kwargs)
    average.replace(logs, "evaluate")
    return logs if as_dictionary else values_in_order(model, logs)


def _check_finite(original: Callable[..., Any], scaler: Any, grads: Any) -> Any:
    finite = original(scaler, grads)
    if not _communicates():
        return finite
    asked: set[int] = set()
    for state in distributed_states(scaler).values():
        if state.is_reduced:  # these are the gradients of all ranks
            continue
        process_set = state.options.process_set
        members = runtime.members(process_set, outside=True)
        if members.included and members.process_set_id not in asked:
            asked.add(members.process_set_id)
            mine = tf.cast(finite, tf.uint8)
            with reductions.unnoted():
                agreed = allreduce(mine, op=Min, name=f"{state.scope}/finite", process_set=process_set)
            finite = tf.cast(agreed, tf.bool)
    return finite
