"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime import ProcessSet
from tfcollective.keras._parallel.step import current_step
from tfcollective.tensorflow._border import opaque
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._rows import allgather

_KERAS_2 = not hasattr(tf.keras.optimizers.Optimizer, "apply")


@tf.keras.utils.register_keras_serializable(package="tfcollective")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]  # Keras is not typed
    """``BatchNormalization`` that, in training, takes mean and variance over the batches of all ranks.

    Ranks may have batches of different size, also empty ones, and masks. One operation a call brings every rank's
    count, mean and variance together; they are combined as in Chan, Golub and LeVeque 1979, which loses no precision
    when the mean is large.

    Args:
        fused: Horovod's; only False.
        process_set: whose ranks' batches; all if None. Other ranks take their own. A saved model keeps the ranks.
        **options: those of ``BatchNormalization``.

    Raises:
        UnsupportedError: `fused` or `synchronized` (Keras's way, over the replicas of a ``tf.distribute`` strategy).
    """

    def __init__(self, fused: bool = False, *, process_set: ProcessSet | None = None, **options: Any) -> None:
        if fused:
            raise UnsupportedError("fused: not with SyncBatchNormalization, whose statistics are not the local ones")
        if options.pop("synchronized", False):
            raise UnsupportedError("synchronized: SyncBatchNormalization is that already, over tfcollective's ranks")
        if _KERAS_2:
            options["fused"] = False
        super().__init__(**options)
        self._process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration, with the ranks of the process set."""
        config: dict[str, Any] = super().get_config()
        return config if self._process_set is None else {**config, "process_set": self._process_set.ranks}

    @classmethod
    def from_config(cls, config: dict[str, Any], **more: Any) -> Any:
        """Makes the layer of a configuration; its process set is the registered one of the same ranks."""
        ranks = config.get("process_set")
        return super().from_config(config if ranks is None else {**config, "process_set": _set_of(ranks)}, **more)

    def _moments(self, inputs: Any, *arguments: Any, **more: Any) -> Any:
        """Keras 3 calls this with a mask; Keras 2 with the axes, and takes it apart in the method below."""
        if _KERAS_2:
            return super()._moments(inputs, *arguments, **more)
        mask = arguments[0] if arguments else more.get("mask")
        return _moments_of_all(inputs, list(self._reduction_axes), mask, self._process_set)[:2]

    def _calculate_mean_and_var(self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> Any:
        moments = _moments_of_all(inputs, list(reduction_axes), mask, self._process_set)[:2]
        return _with_dimensions(moments, inputs, reduction_axes, keep_dims)


def _set_of(ranks: list[int]) -> ProcessSet:
    registered = runtime.current().process_sets.registered().values() if runtime.is_initialized() else ()
    return next((one for one in registered if one.ranks == sorted(ranks)), ProcessSet(ranks))


def synchronize_keras(replace_method: Callable[..., bool]) -> None:
    """Lets ``BatchNormalization(synchronized=True)`` take its moments over the batches of all ranks. Keras takes them
    over the replicas of a ``tf.distribute`` strategy; in the scope of one this stays so.

    Args:
        replace_method: puts a function for a method: see ``tfcollective.keras._copies``.
    """
    kind = tf.keras.layers.BatchNormalization
    if _KERAS_2:
        replace_method(kind, "_calculate_mean_and_var", _mean_and_variance, "keep_dims")
        replace_method(kind, "_fused_batch_norm", _fused)
        replace_method(kind, "_assign_moving_average", _assign_moving_average)
    else:
        replace_method(kind, "_moments", _moments, "mask")


def _moments(original: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> Any:
    if not _is_ours(layer):
        return _or_moving(layer, original(layer, inputs, mask))
    return _moments_of_all(inputs, list(layer._reduction_axes), mask)[:2]


def _or_moving(layer: Any, moments: Any) -> Any:
    """The moving statistics, which then stay as they are, where this rank has no rows of a batch."""
    step = current_step()
    if step is None:
        return moments
    moving = [tf.cast(tf.reshape(one, [-1]), moments[0].dtype) for one in (layer.moving_mean, layer.moving_variance)]
    return tuple(tf.where(step.rows > 0, own, kept) for own, kept in zip(moments, moving, strict=True))


def _mean_and_variance(
    original: Callable[..., Any], layer: Any, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
) -> Any:
    if not _is_ours(layer):
        return original(layer, inputs, reduction_axes, keep_dims, mask=mask)
    moments = _moments_of_all(inputs, list(reduction_axes), mask)[:2]
    return _with_dimensions(moments, inputs, reduction_axes, keep_dims)


def _fused(original: Callable[..., Any], layer: Any, inputs: Any, mask: Any, training: Any) -> Any:
    """Keras 2's default for images. Its operation knows no other ranks, and neither masks."""
    if not _is_ours(layer):
        return original(layer, inputs, mask, training)
    return tf.__internal__.smart_cond.smart_cond(
        training, lambda: _like_fused(layer, inputs), lambda: original(layer, inputs, mask, False)
    )


def _like_fused(layer: Any, inputs: Any) -> Any:
    """The moving variance becomes that of a population of which the batch is a sample, as in the fused operation."""
    values = tf.cast(inputs, layer._param_dtype)
    axes = [axis for axis in range(values.shape.rank) if axis not in layer.axis]
    mean, variance, count = _moments_of_all(values, axes, None)
    estimated = variance * count / tf.maximum(count - 1, 1)
    layer.add_update(lambda: layer._assign_moving_average(layer.moving_mean, mean, layer.momentum, None))
    layer.add_update(lambda: layer._assign_moving_average(layer.moving_variance, estimated, layer.momentum, None))
    parameters = [mean, variance, layer.beta if layer.center else None, layer.gamma if layer.scale else None]
    shaped = [None if one is None else _with_dimensions((one,), values, axes, True)[0] for one in parameters]
    return tf.cast(tf.nn.batch_normalization(values, *shaped, layer.epsilon), inputs.dtype)


def _assign_moving_average(
    original: Callable[..., Any], layer: Any, variable: Any, value: Any, momentum: Any, inputs_size: Any
) -> Any:
    """Leaves statistics of a rank's own rows as they are where it has none of a batch."""
    step = current_step()
    if step is not None and not _is_ours(layer):
        value = tf.where(step.rows > 0, value, tf.cast(variable, value.dtype))
    return original(layer, variable, value, momentum, inputs_size)


def _is_ours(layer: Any) -> bool:
    """True for a layer that is synchronized over more than this process, as all are if batches are divided."""
    divided = current_step() is not None and runtime.settings().batch_norm == "global"
    if (
        not (getattr(layer, "synchronized", False) or divided)
        or tf.distribute.has_strategy()
        or not runtime.is_initialized()
    ):
        return False
    return not runtime.members().alone


def _with_dimensions(moments: Any, inputs: Any, reduction_axes: Any, keep_dims: bool) -> Any:
    if not keep_dims:
        return moments
    shape = [1 if axis in reduction_axes else size for axis, size in enumerate(inputs.shape)]
    return tuple(tf.reshape(moment, shape) for moment in moments)


@opaque
def _moments_of_all(
    inputs: Any, axes: list[int], mask: Any, process_set: ProcessSet | None = None
) -> tuple[Any, Any, Any]:
    """Mean and variance of all ranks' inputs over `axes`, and how many values each is of."""
    inputs = tf.convert_to_tensor(inputs)
    values = tf.cast(inputs, tf.float32) if inputs.dtype.size < tf.float32.size else inputs
    weights = tf.ones_like(values) if mask is None else _weights_of(mask, values)
    count = tf.reduce_sum(weights, axes)
    step = current_step()
    if step is not None and not step.has_some:
        count = tf.where(step.rows > 0, count, tf.zeros_like(count))
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * values, axes), count)
    centred = values - _expanded(mean, axes)
    variance = tf.math.divide_no_nan(tf.reduce_sum(weights * centred * centred, axes), count)
    members = runtime.members(process_set, outside=True)
    if members.included and not members.alone:
        everyones = _of_all_ranks(tf.stack([count, mean, variance]), process_set)
        counts, means, variances = tf.unstack(everyones, axis=1)
        count = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), count)
        spread = counts * (variances + (means - mean) ** 2)
        variance = tf.math.divide_no_nan(tf.reduce_sum(spread, 0), count)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype), count


def _weights_of(mask: Any, values: Any) -> Any:
    return tf.ones_like(values) * tf.cast(tf.convert_to_tensor(mask), values.dtype)[..., tf.newaxis]


def _expanded(moment: Any, axes: list[int]) -> Any:
    """The moment with dimensions of one where the inputs were reduced."""
    for axis in sorted(axes):
        moment = tf.expand_dims(moment, axis)
    return moment


def _of_all_ranks(statistics: Any, process_set: ProcessSet | None) -> Any:
    """[size, ...]: every rank's, with the gradient of the sum of all ranks' losses (``allgather`` has a mean).

    Where a rank's gradients get its share later, those that it gives to others get it here, and others' no second one.
    """
    members, step = runtime.members(process_set), current_step()

    def share() -> Any:  # asked for when gradients are taken, as then the loss has its share, or not
        return tf.constant(1.0, tf.float64) if step is None or step.scaled else step.share

    mine = _with_gradient_times(statistics, lambda: tf.math.reciprocal_no_nan(share()))[tf.newaxis]
    gathered = allgather(mine, process_set=process_set)
    gathered = tf.ensure_shape(gathered, [None if members.elastic else members.size, *statistics.shape])
    return _with_gradient_times(gathered, lambda: tf.cast(size_in_graph(members), tf.float64) * share())


def _with_gradient_times(tensor: Any, factor: Callable[[], Any]) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(value: Any) -> Any:
        return tf.identity(value), lambda gradient: gradient * tf.cast(factor(), gradient.dtype)

    return same(tensor)
