"""``fit``, ``evaluate`` and ``predict`` of a model that all ranks train together, each with its part of the data."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._runtime.communicator import Min
from tfcollective.keras._classes import become_distributed
from tfcollective.keras._elastic_fit import elastic_callback
from tfcollective.keras._optimizers import innermost, train_step_is_own
from tfcollective.keras._parallel import distribution, files, mode, step
from tfcollective.keras._parallel.callbacks import InStep, for_this_rank
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.randomness import own_random_numbers
from tfcollective.keras._parallel.results import check_metrics, leaves_of, result_of_all
from tfcollective.keras._parallel.step import divided_step
from tfcollective.keras._state import OptimizerState, state_of
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback
from tfcollective.tensorflow._objects import allgather_object
from tfcollective.tensorflow._reductions import unnoted
from tfcollective.tensorflow._variables import make_eagerly

_FRACTION = "_tfcollective_fraction"
_DIVIDED = "_tfcollective_divided"  # of a model: the division that its training function was made for


class _Run(threading.local):
    """The state of Keras's trainer on this thread.

    Attributes:
        division: of the data; None: not divided.
        trains: the next iterator that Keras makes is that of the training data.
        evaluates: it evaluates or predicts.
        place: of the last batch that this rank has evaluated, among those of all ranks in this evaluation.
        endless: evaluates steps of data of an unknown length: their iterator.
        fraction: a variable: this rank's part of the last batch.
    """

    division: Division | None = None
    trains = False
    evaluates = False
    place = 0
    endless: Any = None
    fraction: Any = 1.0


_run = _Run()


@contextmanager
def _running(division: Division, *, trains: bool) -> Iterator[None]:
    before = (_run.division, _run.trains, _run.evaluates)
    _run.division, _run.trains, _run.evaluates = division, trains, not trains
    try:
        yield
    finally:
        _run.division, _run.trains, _run.evaluates = before


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes Keras, once a process. Without ``set_distribution`` everything stays as it was.

    Args:
        keras: the module; nothing is done with Keras 2.
        replace_method: see ``tfcollective.keras._copies``.
    """
    if not hasattr(keras, "distribution"):
        return
    for install_part in (distribution.install, files.install, step.install, _install):
        try:
            install_part(keras, replace_method)
        except (ImportError, AttributeError) as error:
            mode.note_missing(str(error))


def _install(keras: Any, replace_method: Callable[..., bool]) -> None:
    from keras.src.backend.tensorflow.trainer import TFEpochIterator  # noqa: TID251  # install() is for Keras 3

    replace_method(TFEpochIterator, "__init__", _make_iterator)
    replace_method(keras.Model, "_get_metrics_result_or_logs", _result)


def fit(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.fit``, with slices of each batch.

    Args:
        original: Keras's, or what is around it.
        arguments: of ``fit``, by name.
    """
    _prepare(model)
    callbacks = _listed(arguments.get("callbacks"))
    if elastic_callback(callbacks) is not None:
        raise UnsupportedError("Elastic: it divides the data of fit by itself: leave out DataParallel")
    mine = for_this_rank(callbacks)
    # The broadcast comes after rank 0 may have restored a backup.
    arguments["callbacks"] = [CountBatches(), *mine, BroadcastGlobalVariablesCallback(0), InStep(callbacks)]
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    with _running(division, trains=True), _divided(model, division), own_random_numbers(model, division.rank):
        return original(model, **arguments)


def train_on_batch(original: Callable[..., Any], model: Any, division: Division, *args: Any, **kwargs: Any) -> Any:
    """``Model.train_on_batch``, with this rank's slice of the batch; returns the metrics of the whole batch."""
    _prepare(model)
    as_dictionary = kwargs.pop("return_dict", False)
    with _running(division, trains=True), _divided(model, division):
        logs = model._get_metrics_result_or_logs(original(model, *args, return_dict=True, **kwargs))
    return logs if as_dictionary else model._flatten_metrics_in_order(logs)


def evaluate(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.evaluate``, with every ``size``-th batch; returns on all ranks what one process returns."""
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    check_metrics(leaves_of(_known_metrics(model)))
    if not isinstance(arguments.get("callbacks"), tf.keras.callbacks.CallbackList):  # that of fit has one
        arguments["callbacks"] = [CountBatches(), *_listed(arguments.get("callbacks"))]
    with _running(division, trains=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return original(model, **arguments)


def predict(original: Callable[..., Any], model: Any, arguments: dict[str, Any], division: Division) -> Any:
    """``Model.predict``, with every ``size``-th batch; returns all rows on all ranks, in the order of the data."""
    counts = CountBatches()
    arguments["callbacks"] = [counts, *_listed(arguments.get("callbacks"))]
    if runtime.rank() != 0:
        arguments["verbose"] = 0
    with _running(division, trains=False), _single_steps(model), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        try:
            mine = original(model, **arguments)
        except UnboundLocalError:  # Keras has predicted nothing
            mine = None
    everyones = allgather_object((counts.rows, mine), name="predictions")
    return _in_order(everyones) if any(rows for rows, _ in everyones) else mine


class CountBatches(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Notes the number of batches that this rank evaluates, and how many rows each batch of ``predict`` has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        _begin_at(0)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts."""
        _run.place += runtime.size()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts rows."""
        self.rows.append(int(tf.nest.flatten(logs["outputs"])[0].shape[0]))


def _in_order(everyones: Sequence[tuple[list[int], Any]]) -> Any:
    """The rows of all ranks' batches, which they took in turn."""
    structure = next(outputs for rows, outputs in everyones if rows)
    if not all(isinstance(one, np.ndarray) for one in tf.nest.flatten(structure)):
        raise UnsupportedError("predict: ragged and sparse predictions of several ranks are not put together")
    chunks: list[list[Any]] = [[] for _ in tf.nest.flatten(structure)]
    split = [
        [np.split(one, np.cumsum(rows)[:-1]) for one in tf.nest.flatten(outputs)] if rows else []
        for rows, outputs in everyones
    ]
    for place in range(max(len(rows) for rows, _ in everyones)):
        for rank, (rows, _) in enumerate(everyones):
            if place < len(rows):
                for collected, parts in zip(chunks, split[rank], strict=True):
                    collected.append(parts[place])
    return tf.nest.pack_sequence_as(structure, [np.concatenate(collected) for collected in chunks])


@contextmanager
def _single_steps(model: Any) -> Iterator[None]:
    steps = model.steps_per_execution
    if steps == 1:
        yield
        return
    model.steps_per_execution, model.predict_function = 1, None
    try:
        yield
    finally:
        model.steps_per_execution, model.predict_function = steps, None


def _prepare(model: Any) -> None:
    """Makes the optimizers of a compiled model reduce.

    Raises:
        ConfigError: one is a DistributedOptimizer of the user's.
        UnsupportedError: a metric's states cannot be merged.
    """
    check_metrics(leaves_of(_known_metrics(model)))
    for place, optimizer in innermost(model).items():
        state = state_of(optimizer)
        if state is None:
            become_distributed(optimizer, OptimizerState(divided=True))
        elif not state.divided:
            raise ConfigError(
                f"{place}: it is a DistributedOptimizer, and DataParallel divides batches and reduces by itself: leave "
                "one of them out"
            )


def _known_metrics(model: Any) -> list[Any]:
    """The metrics of a model that exist before its first step: of those of ``compile`` the ones that are objects."""
    given = getattr(model, "_compile_metrics", None)
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
    if own:
        _run.fraction = _fraction_of(model)
    object.__setattr__(model, "train_step", divided_step(model.train_step, division, _run.fraction if own else None))
    try:
        yield
    finally:
        object.__delattr__(model, "train_step")


def _fraction_of(model: Any) -> Any:
    """A variable that the model's training step gives this rank's part of each batch; one for all its functions."""
    if not hasattr(model, _FRACTION):
        object.__setattr__(model, _FRACTION, make_eagerly(lambda: tf.constant(1.0), "tfcollective_fraction"))
    return getattr(model, _FRACTION)


def _make_iterator(original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
    original(iterator, *args, **kwargs)
    if _run.division is None:
        return
    if _run.trains:
        _run.trains = False  # the next one is that of the validation
        iterator._distributed_dataset = _run.division.parts_of(iterator._distributed_dataset)
        return
    if iterator.steps_per_epoch:
        together = iterator.steps_per_execution
        iterator._distributed_dataset = _run.division.whole_batches_of(iterator._distributed_dataset, together)
        iterator._enumerate_iterator = functools.partial(_enumerate_steps, iterator, _run.division)
        return
    dataset = _run.division.whole_batches_of(iterator._distributed_dataset)
    iterator._distributed_dataset = dataset
    iterator.data_adapter = _Counted(iterator.data_adapter, dataset)
    iterator._num_batches = iterator.data_adapter.num_batches


def _begin_at(place: int) -> None:
    """An evaluation begins at this place of the data, from which on ranks take turns."""
    _run.place = (runtime.rank() - place) % runtime.size() - runtime.size()


def _enumerate_steps(iterator: Any, division: Division) -> Iterator[tuple[int, int, Any]]:
    """This rank's steps of an evaluation of so many steps. As in Keras, the next one goes on where this one ends."""
    together, total = iterator.steps_per_execution, iterator._num_batches
    iterator.data_adapter.on_epoch_begin()
    if iterator._current_iterator is None:
        iterator._current_iterator, iterator._steps_seen = iter(iterator._distributed_dataset), 0
    _begin_at(iterator._steps_seen // together)
    _run.endless = iterator if total is None else None
    for number in range(0, iterator.steps_per_epoch, together):
        if total and iterator._steps_seen >= total:
            break
        place = iterator._steps_seen // together
        iterator._steps_seen += together
        if division.takes(place):
            yield number, number + together - 1, iterator._current_iterator
    if total and iterator._steps_seen >= total:
        iterator._current_iterator, iterator._steps_seen = iter(iterator._distributed_dataset), 0
    iterator.data_adapter.on_epoch_end()


def _agree_on_end(iterator: Any) -> None:
    """Where one rank has come to the end of the data, all have."""
    mine = float("inf") if iterator._num_batches is None else iterator._num_batches
    with unnoted():
        end = runtime.get_communicator().allreduce(float(mine), op=Min, name="end of the data of an evaluation")
    if end < float("inf"):
        iterator._num_batches, iterator._current_iterator = int(end), None


class _Counted:
    """A data adapter with this rank's number of batches.

    Each iterator that begins moves the seeds of a ``shuffle`` that training and validation may share. Keras begins one
    before the batches and one after them, but none after no batches.
    """

    def __init__(self, adapter: Any, dataset: Any) -> None:
        self._adapter, self._dataset, self._begun = adapter, dataset, False
        cardinality = int(dataset.cardinality())
        self.num_batches = cardinality if cardinality >= 0 else None

    def on_epoch_begin(self) -> None:
        self._begun = True
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        if self._begun and self.num_batches == 0:
            iter(self._dataset)
        self._begun = False
        self._adapter.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def _result(original: Callable[..., Any], model: Any, logs: Any) -> Any:
    """Returns the results of an epoch or an evaluation over all ranks."""
    if _run.division is None or not isinstance(logs, dict):
        return original(model, logs)
    if _run.evaluates:
        endless, _run.endless = _run.endless, None
        if endless is not None:
            _agree_on_end(endless)
        return result_of_all(model, logs, _run.place, "an evaluation", last_counts=True)
    return result_of_all(model, logs, float(_run.fraction), "an epoch", last_counts=False)
