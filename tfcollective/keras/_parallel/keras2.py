"""Keras 2's trainer, losses and metrics, for what is built within a divided run or step.

Its losses divide by the number of rows, masks apart, so shares of rows are exact with sample weights. Only where it
scales the loss, in float16, the loss can get a rank's share: elsewhere gradients get it, in the optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._optimizers import innermost
from tfcollective.keras._parallel.mode import check_attributes
from tfcollective.keras._parallel.randomness import set_apart
from tfcollective.keras._parallel.run import is_of_training, result_of_run, run
from tfcollective.keras._parallel.spare_row import call_layer
from tfcollective.keras._parallel.step import (
    compute_loss,
    current_step,
    note_values,
    replace_updates,
    sum_of_all,
    update_counted,
    update_mean,
    weigh_loss,
)
from tfcollective.keras._row_sample import watched
from tfcollective.tensorflow._objects import broadcast_object

_OF_MODELS = (
    *("_jit_compile", "compiled_loss", "compiled_metrics", "stop_training"),
    *("predict_function", "test_function", "train_function"),
)


class NoBatchesError(Exception):
    """This rank has no batch to predict."""


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes Keras, once a process. Where work is not divided everything stays as it was.

    Args:
        keras: Keras 2: ``tf.keras`` of TensorFlow 2.15, or tf_keras.
        replace_method: see ``tfcollective.keras._copies``.
    """
    handler: Any = sys.modules[keras.Model.__module__].data_adapter.DataHandler  # type: ignore[attr-defined]
    losses: Any = sys.modules[keras.losses.Loss.__module__].losses_utils  # type: ignore[attr-defined]
    generator: Any = sys.modules[keras.layers.Layer.__module__].backend.RandomGenerator  # type: ignore[attr-defined]
    scalers: Any = sys.modules[keras.mixed_precision.LossScaleOptimizer.__module__]  # type: ignore[attr-defined]
    check_attributes(handler, "_adapter", "_current_step", "_dataset", "_infer_steps", "_inferred_steps", "_model")
    check_attributes(generator, "_built", "_generator")
    check_attributes(keras.Model, *_OF_MODELS)
    check_attributes(keras.metrics.MeanMetricWrapper, "_fn", "_fn_kwargs")
    losses.compute_weighted_loss = _reducing(losses.compute_weighted_loss)
    losses.apply_valid_mask = _masking(losses.apply_valid_mask, losses.apply_mask)
    replace_method(keras.layers.Layer, "__call__", call_layer)
    replace_method(keras.losses.Loss, "__call__", compute_loss)
    replace_method(keras.metrics.Mean, "update_state", _update_state)
    replace_updates(keras, replace_method)
    replace_method(handler, "__init__", _make_handler)
    replace_method(handler, "enumerate_epochs", _enumerate_epochs)
    for kind in (scalers.LossScaleOptimizer, scalers.LossScaleOptimizerV3):
        replace_method(kind, "get_scaled_loss", _scale_loss)
    replace_method(generator, "_maybe_init", _init_generator)
    replace_method(keras.Model, "_validate_and_get_metrics_result", _result)
    replace_method(keras.Model, "_maybe_load_initial_counters_from_ckpt", _counters)


def check_losses(model: Any) -> None:
    """Raises UnsupportedError for a loss of each row in Keras's own training step: gradients are those of their sum."""
    given = getattr(model.compiled_loss, "_user_losses", None)
    for loss in tf.nest.flatten(given):
        if getattr(loss, "reduction", None) == "none":
            raise UnsupportedError(f"loss {loss.name}: with reduction='none' it cannot be divided: use 'sum'")


def _make_handler(original: Callable[..., Any], handler: Any, *args: Any, **kwargs: Any) -> None:
    original(handler, *args, **kwargs)
    division = run.division
    if division is None or not kwargs.get("distribute", True):  # a preprocessing layer reads for itself
        return
    _check(handler, **kwargs)
    if is_of_training():
        handler._dataset = division.parts_of(handler._dataset, watched)
        return
    steps, together = handler._inferred_steps, int(handler._steps_per_execution)
    data = handler._dataset if steps is None else handler._dataset.take(steps)
    handler._dataset = division.whole_batches_of(data, together)
    mine = None if steps is None else sum(division.takes(place // together) for place in range(steps))
    handler._inferred_steps = mine
    handler._infer_steps = _known_number


def _check(handler: Any, workers: int = 1, **_: Any) -> None:
    if getattr(handler._model, "autotune_steps_per_execution", False):
        raise UnsupportedError("steps_per_execution='auto': it would change at other steps on each rank: give a number")
    if workers > 1 and type(handler._adapter).__name__ == "GeneratorDataAdapter":
        raise UnsupportedError(
            "workers: with several, the batches of a generator have another order on each rank: leave it out, or pass "
            "a keras.utils.Sequence"
        )


def _known_number(_steps: Any, dataset: Any) -> int | None:
    """The number of a rank's batches, when an evaluation begins again."""
    number = int(dataset.cardinality())
    return number if number >= 0 else None


def _enumerate_epochs(original: Callable[..., Any], handler: Any) -> Iterator[Any]:
    yield from original(handler)
    if run.predicts and handler._current_step == 0:
        raise NoBatchesError


def _result(original: Callable[..., Any], model: Any, logs: Any) -> Any:
    """Returns the results of an epoch or an evaluation over all ranks."""
    return original(model, logs) if run.division is None or not isinstance(logs, dict) else result_of_run(model, logs)


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    scaled, parts = original(optimizer, loss), innermost(optimizer).values()
    return (lambda: weigh_loss(scaled(), parts)) if callable(scaled) else weigh_loss(scaled, parts)


def _init_generator(original: Callable[..., Any], generator: Any) -> None:
    """A layer that is built in a step gets its generator there: each rank's own."""
    is_new = not generator._built
    original(generator)
    if is_new and run.division is not None and current_step() is not None and generator._generator is not None:
        with tf.init_scope():
            set_apart([(generator._generator.state, -1)], run.division.rank)


def _counters(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the epoch and the step to begin with, those of rank 0, which may have restored a backup."""
    mine = original(model, *args, **kwargs)
    return mine if run.division is None else broadcast_object(mine, name="initial epoch and step")


def _update_state(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    if not isinstance(metric, tf.keras.metrics.Mean):  # it shares the method with Sum
        return update_counted(original, metric, values, sample_weight=sample_weight)
    return update_mean(original, metric, values, sample_weight)


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_weighted_loss(
        losses: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size", name: Any = None
    ) -> Any:
        note_values(tf.convert_to_tensor(losses))
        loss, step = original(losses, sample_weight, reduction, name), current_step()
        return loss if step is None or reduction != "sum" else step.summed(loss)

    return compute_weighted_loss


def _masking(original: Callable[..., Any], apply_mask: Callable[..., Any]) -> Callable[..., Any]:
    def apply_valid_mask(losses: Any, sample_weight: Any, mask: Any, reduction: Any) -> Any:
        """A mean over what is not masked, as weights of a mean over all: those of the whole batch."""
        step = current_step()
        if step is None or mask is None or reduction not in ("auto", "sum_over_batch_size"):
            return original(losses, sample_weight, mask, reduction)
        valid = sum_of_all(tf.reduce_sum(tf.cast(mask, tf.float64)))
        elements = step.summed(tf.cast(tf.size(mask), tf.float64))
        weights = tf.cast(mask, losses.dtype) * tf.cast(tf.math.divide_no_nan(elements, valid), losses.dtype)
        return apply_mask(losses, sample_weight, weights)

    return apply_valid_mask
