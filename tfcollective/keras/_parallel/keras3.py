"""Keras 3's trainer, losses and optimizers, for what is built within a divided run or step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime.communicator import Min
from tfcollective.keras._optimizers import innermost
from tfcollective.keras._parallel.callbacks import wait_for_last_batch
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.mode import check_attributes
from tfcollective.keras._parallel.run import begin_at, is_of_training, result_of_run, run
from tfcollective.keras._parallel.spare_row import call_layer
from tfcollective.keras._parallel.step import (
    Step,
    compute_loss,
    current_step,
    note_values,
    replace_updates,
    rounded,
    sum_of_all,
    update_mean,
    weigh_loss,
    within,
)
from tfcollective.keras._row_sample import watched
from tfcollective.keras._state import state_of
from tfcollective.tensorflow._reductions import unnoted

OLDEST = (3, 12)  # 3.10 has other iterators
_OF_ITERATORS = (
    *("_current_iterator", "_distributed_dataset", "_enumerate_iterator", "_num_batches", "_steps_seen"),
    *("data_adapter", "steps_per_epoch", "steps_per_execution"),
)
_OF_MODELS = (
    *("_compile_metrics", "_flatten_metrics_in_order", "_jit_compile", "stop_evaluating", "stop_training"),
    *("predict_function", "test_function", "train_function"),
)


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes Keras, once a process. Without ``set_distribution`` everything stays as it was.

    Args:
        keras: Keras 3.
        replace_method: see ``tfcollective.keras._copies``.
    """
    from keras.src.backend.tensorflow.trainer import TFEpochIterator  # noqa: TID251  # install() is for Keras 3
    from keras.src.losses import loss as losses  # noqa: TID251
    from keras.src.trainers.compile_utils import CompileMetrics  # noqa: TID251

    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if version < OLDEST:
        raise ImportError(f"it is older than {OLDEST[0]}.{OLDEST[1]}")
    check_attributes(TFEpochIterator, *_OF_ITERATORS)
    check_attributes(keras.Model, *_OF_MODELS)
    check_attributes(CompileMetrics, "_user_metrics", "_user_weighted_metrics")
    check_attributes(keras.metrics.MeanMetricWrapper, "_fn", "_fn_kwargs")
    check_attributes(keras.distribution.DataParallel, "_auto_shard_dataset", "_is_multi_process")
    check_attributes(keras.layers.Layer, "_seed_generators")
    losses.reduce_weighted_values = _wrapped(losses)
    replace_method(keras.layers.Layer, "__call__", call_layer)
    if version < (3, 14):
        replace_method(keras.layers.Layer, "__call__", call_summing)
    replace_method(keras.losses.Loss, "__call__", compute_loss)
    replace_method(keras.metrics.Mean, "update_state", update_mean)
    replace_updates(keras, replace_method)
    replace_method(keras.optimizers.Optimizer, "scale_loss", _scale_loss)
    replace_method(keras.optimizers.LossScaleOptimizer, "scale_loss", _scale_loss)
    replace_method(keras.optimizers.LossScaleOptimizer, "apply", _apply_scaled)
    replace_method(keras.Model, "_aggregate_additional_loss", _aggregate)
    replace_method(TFEpochIterator, "__init__", _make_iterator)
    replace_method(keras.Model, "_get_metrics_result_or_logs", _result)


def _make_iterator(original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
    original(iterator, *args, **kwargs)
    if run.division is None:
        return
    if is_of_training():
        iterator._distributed_dataset = run.division.parts_of(iterator._distributed_dataset, watched)
        return
    if iterator.steps_per_epoch:
        together = iterator.steps_per_execution
        iterator._distributed_dataset = run.division.whole_batches_of(iterator._distributed_dataset, together)
        iterator._enumerate_iterator = functools.partial(_enumerate_steps, iterator, run.division)
        return
    dataset = run.division.whole_batches_of(iterator._distributed_dataset)
    iterator._distributed_dataset = dataset
    iterator.data_adapter = _Counted(iterator.data_adapter, dataset, run.division)
    iterator._num_batches = iterator.data_adapter.num_batches
    iterator._enumerate_iterator = functools.partial(_number_steps, iterator, iterator._enumerate_iterator)


def _number_steps(iterator: Any, original: Callable[[], Any]) -> Iterator[tuple[int, int, Any]]:
    """Keras's steps of an evaluation; with the numbers that they have in one process where callbacks may stop it."""
    together = iterator.steps_per_execution
    for begin, end, batches in original():
        first = (run.place + runtime.size()) * together
        yield (first, first + together - 1, batches) if run.agrees else (begin, end, batches)


def _enumerate_steps(iterator: Any, division: Division) -> Iterator[tuple[int, int, Any]]:
    """This rank's steps of an evaluation of so many steps. As in Keras, the next one goes on where this one ends."""
    together, total = iterator.steps_per_execution, iterator._num_batches
    iterator.data_adapter.on_epoch_begin()
    if iterator._current_iterator is None:
        iterator._current_iterator, iterator._steps_seen = iter(iterator._distributed_dataset), 0
    begin_at(iterator._steps_seen // together, together)
    run.endless = iterator if total is None else None
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
    """A data adapter with this rank's number of batches. Keras makes a step too many where it does not know it, and
    that counts in means over batches, as of the loss of an output.

    Each iterator that begins moves the seeds of a ``shuffle`` that training and validation may share. Keras begins one
    before the batches and one after them, but none after no batches.
    """

    def __init__(self, adapter: Any, dataset: Any, division: Division) -> None:
        self._adapter, self._dataset, self._begun = adapter, dataset, False
        cardinality, whole = int(dataset.cardinality()), adapter.num_batches
        mine = None if whole is None else sum(map(division.takes, range(whole)))
        self.num_batches = cardinality if cardinality >= 0 else mine

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
    if run.division is None or not isinstance(logs, dict):
        return original(model, logs)
    endless, run.endless = run.endless, None
    if run.evaluates and run.agrees:
        wait_for_last_batch(model)
    if run.evaluates and endless is not None:
        _agree_on_end(endless)
    return result_of_run(model, logs)


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    with within(None):  # an optimizer around another one calls it, too
        scaled = original(optimizer, loss)
    return weigh_loss(scaled, innermost(optimizer).values())


def _apply_scaled(
    original: Callable[..., Any], scaler: Any, grads: Sequence[Any], trainable_variables: Any = None
) -> Any:
    """Decides by the gradients of all ranks whether they are finite."""
    inner = scaler.inner_optimizer
    state = state_of(inner)
    if state is None or not state.divided or not state.communicates:
        return original(scaler, grads, trainable_variables)
    with state.update():
        reduced = inner.reduced_first(grads, trainable_variables or scaler._trainable_variables)
        return original(scaler, rounded(reduced, grads), trainable_variables)


def call_summing(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """``Layer.__call__`` of a Keras in which the loss of an ``activity_regularizer`` is a sum over the rows."""
    step, regularizer = current_step(), layer.activity_regularizer
    if step is None or regularizer is None:
        return original(layer, *args, **kwargs)
    vars(layer)["activity_regularizer"] = lambda output: step.summed(regularizer(output))
    try:
        return original(layer, *args, **kwargs)
    finally:
        vars(layer)["activity_regularizer"] = regularizer


def _aggregate(original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """Keras adds up what a layer gives to ``add_loss``: numbers of rows are a sum over the rows."""
    step, result = current_step(), original(model, loss)
    return result if step is None or len(loss.shape) == 0 else step.summed(result)


def _wrapped(losses: Any) -> Callable[..., Any]:
    original = losses.reduce_weighted_values

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        step = current_step()
        note_values(values)
        if step is None or reduction in (None, "none") or len(values.shape) == 0:
            return loss
        if len(loss.shape) > 0:  # Keras does not reduce no rows
            return tf.reduce_sum(loss)
        if reduction == "sum":
            return step.summed(loss)
        counted = _counted(sample_weight, mask, reduction, losses)
        return loss if counted is None else loss * tf.cast(_relative(counted, step), loss.dtype)

    return reduce_weighted_values


def _counted(sample_weight: Any, mask: Any, reduction: str, losses: Any) -> Any:
    """Returns the number of elements that a loss is a mean over, a float64 scalar; None for rows of one size."""
    counted = mask
    if reduction == "mean_with_sample_weight":
        counted = losses.apply_mask(sample_weight, mask, dtype="float64", reduction=reduction)
    return None if counted is None else tf.reduce_sum(tf.cast(tf.convert_to_tensor(counted), tf.float64))


def _relative(counted: Any, step: Step) -> Any:
    """This rank's part of what is counted, as a multiple of its part of the rows."""
    return tf.math.divide_no_nan(tf.math.divide_no_nan(counted, sum_of_all(counted)), step.share)
