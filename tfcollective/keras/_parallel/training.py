"""``fit``, ``evaluate`` and ``predict`` of a model that all ranks train together, each with its part of the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._runtime.communicator import Sum
from tfcollective.keras._classes import become_distributed
from tfcollective.keras._elastic_fit import elastic_callback
from tfcollective.keras._optimizers import INSTEAD_OF, innermost, train_step_is_own
from tfcollective.keras._parallel import distribution, files, keras2, keras3, mode
from tfcollective.keras._parallel.callbacks import CountBatches, InStep, for_this_rank, stop_together, with_our_backups
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.interrupted import begin_attempt, rest_of
from tfcollective.keras._parallel.predictions import Predictions, take_wanted
from tfcollective.keras._parallel.randomness import own_random_numbers
from tfcollective.keras._parallel.results import count_on, leaves_of, prepare_metrics, values_in_order
from tfcollective.keras._parallel.run import result_of_run, run, running
from tfcollective.keras._parallel.step import divided_step
from tfcollective.keras._parallel.updates import recording
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback
from tfcollective.tensorflow._gradients import GradientOptions
from tfcollective.tensorflow._variables import make_eagerly

_SHARE = "_tfcollective_share_of_rows"
_DIVIDED = "_tfcollective_divided"  # of a model: the division that its training function was made for


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes Keras, once a process. Where work is not divided everything stays as it was.

    Args:
        keras: the module.
        replace_method: see ``tfcollective.keras._copies``.
    """
    replace_method = mode.noting(replace_method)
    parts = (distribution.install, keras3.install) if mode.has_distributions() else (keras2.install,)
    for install_part in (*parts, files.install):
        try:
            install_part(keras, replace_method)
        except (ImportError, AttributeError) as error:
            mode.note_missing(str(error))


def fit(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.fit``, with slices of each batch.

    Args:
        original: Keras's, or what is around it.
        arguments: of ``fit``, by name.
    """
    _prepare(model)
    callbacks = with_our_backups(_listed(arguments.get("callbacks")))
    if elastic_callback(callbacks) is not None:
        raise UnsupportedError("Elastic: it divides the data of fit by itself: leave out DataParallel")
    mine = for_this_rank(callbacks)
    # The broadcast comes after rank 0 may have restored a backup.
    last = [BroadcastGlobalVariablesCallback(0), *stop_together(callbacks), InStep(callbacks)]
    arguments["callbacks"] = [CountBatches(), *mine, *last]
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    with running(division, trains=True), _divided(model, division), own_random_numbers(model, division.rank):
        return original(model, **arguments)


def train_on_batch(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.train_on_batch``, with this rank's slice of the batch; returns the metrics of the whole batch."""
    if not arguments.pop("reset_metrics", True):
        raise UnsupportedError("train_on_batch: reset_metrics=False: the ranks' metrics are merged after each batch")
    _prepare(model)
    as_dictionary = arguments.pop("return_dict", False)
    count_on(model)
    with running(division, trains=True), _divided(model, division):
        mine = original(model, **arguments, return_dict=True)
        logs = _like(mine, result_of_run(model, mine))
    if run.division is not None:  # a callback of fit has called it, and fit counts on
        count_on(model)
    return logs if as_dictionary else values_in_order(model, logs)


def _like(logs: dict[str, Any], flat: dict[str, Any]) -> dict[str, Any]:
    """The results as Keras before 3.13 returns those of a step of the user's own: with dictionaries within them."""
    return {name: _like(one, flat) if isinstance(one, dict) else flat[name] for name, one in logs.items()}


def evaluate(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.evaluate``, with every ``size``-th batch; returns on all ranks what one process returns."""
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    if _gets_weights(model, division):
        return original(model, **arguments)
    gathers = prepare_metrics(leaves_of(_known_metrics(model)))
    if not isinstance(arguments.get("callbacks"), tf.keras.callbacks.CallbackList):  # that of fit has one
        callbacks = _listed(arguments.get("callbacks"))
        arguments["callbacks"] = [CountBatches(), *callbacks, *stop_together(callbacks)]
    attempt = begin_attempt(model, arguments, mergeable=not gathers) if division.slices(arguments.get("x")) else None
    if attempt is not None:
        division = rest_of(division, attempt)
    noting = recording(model) if gathers else nullcontext()
    with running(division, attempt=attempt), noting, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return original(model, **arguments)


def predict(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.predict``, with every ``size``-th batch; returns all rows on all ranks, in the order of the data, or what
    ``tfcollective.keras.predict`` was asked for.
    """
    wanted = take_wanted()
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    whole = _gets_weights(model, division)
    predictions = Predictions(wanted, division.takes if whole else None)
    divided = nullcontext() if whole else running(division, predicts=True)
    given = _listed(arguments.get("callbacks"))
    with divided, predictions.of(model, given) as arguments["callbacks"], warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        with suppress(UnboundLocalError, keras2.NoBatchesError):  # Keras has predicted nothing
            original(model, **arguments)
    return predictions.gathered()


def _gets_weights(model: Any, division: Division) -> bool:
    """True if an evaluation or prediction makes the model's weights: each rank does all of it, as one without batches
    would have none."""
    return division.shards_data and run.division is None and not model.built


def _prepare(model: Any) -> None:
    """Makes the optimizers of a compiled model reduce.

    Raises:
        ConfigError: one is a DistributedOptimizer of the user's.
        UnsupportedError: a metric's states cannot be merged.
    """
    prepare_metrics(leaves_of(_known_metrics(model)))
    for place, optimizer in innermost(model).items():
        state = state_of(optimizer)
        if state is None:
            become_distributed(optimizer, OptimizerState(GradientOptions(op=Sum), divided=True))
        elif not state.divided:
            raise ConfigError(
                f"{place}: it is a DistributedOptimizer, and DataParallel divides batches and reduces by itself: leave "
                "one of them out"
            )


def _known_metrics(model: Any) -> list[Any]:
    """The metrics of a model that exist before its first step: of those of ``compile`` the ones that are objects."""
    given = getattr(model, "_compile_metrics" if mode.has_distributions() else "compiled_metrics", None)
    users = [given._user_metrics, given._user_weighted_metrics] if given is not None else []
    objects = [one for one in tf.nest.flatten(users) if isinstance(one, tf.keras.metrics.Metric)]
    return [*objects, *(one for one in model.metrics if one is not given)]


def _listed(given: Any) -> list[Any]:
    if isinstance(given, tf.keras.callbacks.CallbackList):
        raise UnsupportedError("callbacks: with DataParallel pass a list, not a CallbackList")
    return [one for one in tf.nest.flatten(given) if one is not None]


@contextmanager
def _divided(model: Any, division: Division) -> Iterator[None]:
    """Within it, the model's training step is for this rank's part of a batch."""
    if getattr(model, _DIVIDED, None) != division:
        object.__setattr__(model, _DIVIDED, division)
        model.train_function = None
    own = train_step_is_own(model)
    run.share = _share_of(model) if own else 1.0
    if not own and not mode.has_distributions():
        keras2.check_losses(model)
    before = vars(model).get("train_step")
    if not hasattr(before, INSTEAD_OF):  # else it is that of a fit around this run
        of_keras = not own and mode.has_distributions()
        step = divided_step(model.train_step, division, run.share if own else None, of_keras=of_keras)
        setattr(step, INSTEAD_OF, before)
        object.__setattr__(model, "train_step", step)
    try:
        yield
    finally:
        if before is None:
            object.__delattr__(model, "train_step")
        else:
            object.__setattr__(model, "train_step", before)


def _share_of(model: Any) -> Any:
    """A variable that the model's training step gives this rank's part of each batch; one for all its functions."""
    if not hasattr(model, _SHARE):
        object.__setattr__(model, _SHARE, make_eagerly(lambda: tf.constant(1.0), "tfcollective_share_of_rows"))
    return getattr(model, _SHARE)
