"""The training step that is being built, or run: what makes its sums those of the whole batch.

A rank computes with its rows of a batch. Losses are means over rows, so a rank's loss counts by its *share*: its rows
over the rows of all. The sum of the ranks' gradients is then that of the whole batch, and each row has the gradient
that it has in one process, which may be as large as float16 allows.

* Where an optimizer scales the loss before the gradients are taken, as in the training step of Keras 3, the share is a
  factor there, which costs nothing. Otherwise the gradients get the factor, in the optimizer.
* A loss whose mean is over something else than rows gets a factor of its own: ``reduction="sum"``, masks, and means
  over the sample weights. The last two need the sum over all ranks.
* A loss or a metric that makes one number of a batch may be no mean at all: it is computed of the rows of all ranks.
* A number that a step gives to a ``Mean`` counts as one batch: each rank's counts by its share.

Metrics are sums over rows otherwise, and need nothing. A rank without rows of a batch computes with none, but for
its layers: see ``spare_row``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfcollective._runtime.communicator import Sum
from tfcollective.keras._parallel.division import Division, has_rows, rows_of
from tfcollective.keras._parallel.randomness import own_seed
from tfcollective.keras._parallel.rows import Part
from tfcollective.tensorflow import _reductions as reductions
from tfcollective.tensorflow._functions import allreduce
from tfcollective.tensorflow._rows import allgather

_OF_A_BATCH = ("dice", "tversky")  # functions of Keras's that make one number of all rows


@dataclass(frozen=True)
class Step:
    """A training step that is being traced or run.

    Attributes:
        rows: of this rank, a scalar int64 tensor.
        total: rows of all ranks.
        of_keras: it is that of Keras 3, in which no rows have gradients of zero.
        begin: the first of this rank's rows in those of all ranks.
        spare: the dense parts of this rank's batch, each with its row of ``Part.spare``.
        is_filled: a layer is called that gets such rows where this rank has none.
        scaled: the ids of the optimizers that have scaled a loss, and have not been given its gradients yet.
    """

    rows: Any
    total: Any
    of_keras: bool = False
    begin: Any = 0
    spare: tuple[tuple[Any, Any], ...] = ()
    is_filled: bool = False
    scaled: set[int] = field(default_factory=set)

    @property
    def share(self) -> Any:
        """This rank's part of the batch, from 0 to 1: a float64 scalar."""
        return tf.math.divide_no_nan(tf.cast(self.rows, tf.float64), tf.cast(self.total, tf.float64))

    @property
    def has_some(self) -> bool:
        """True where it is known while the step is built that this rank has rows."""
        rows = tf.get_static_value(self.rows)
        return rows is not None and int(rows) > 0

    def summed(self, value: Any) -> Any:
        """A sum over this rank's rows as a mean over ranks that count by their shares."""
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))

    def shared(self, value: Any) -> Any:
        """`value` times this rank's share; 0 without rows, whatever was computed of none."""
        return _changed(value, lambda one: self._kept(one * tf.cast(self.share, one.dtype)))

    def kept(self, value: Any) -> Any:
        """`value`; 0 without rows, whatever was computed of none."""
        return _changed(value, self._kept)

    def _kept(self, tensor: Any) -> Any:
        return tensor if self.has_some else tf.where(self.rows > 0, tensor, tf.zeros_like(tensor))

    def counted(self, value: Any) -> Any:
        """What a metric counts of `value`: nothing of rows that a layer got where this rank has none."""
        if not self.is_filled or value is None or not has_rows(value):
            return value
        return value[: tf.where(self.rows > 0, rows_of(value), 0)]

    def whole(self, value: Any) -> Any:
        """What all ranks have of `value`, in the order of the batch, where it has rows; equal on all ranks.

        The gradient is that of this rank's rows, for a loss that counts by its share on each rank.
        """
        if value is None or not has_rows(value):
            return value
        value = tf.convert_to_tensor(value)
        mask = getattr(value, "_keras_mask", None)
        value = self.counted(value)

        @tf.custom_gradient
        def gathered(mine: Any) -> tuple[Any, Callable[[Any], Any]]:
            with reductions.unnoted():
                everyones = allgather(mine)

            def gradient(upstream: Any) -> Any:
                each = rows_of(mine) // tf.maximum(self.rows, 1)  # a row of the batch may have become several
                begin = self.begin * each
                return self.summed(upstream[begin : begin + rows_of(mine)])

            return everyones, gradient

        everyones = gathered(value)
        if mask is not None:
            everyones._keras_mask = tf.cast(self.whole(tf.cast(mask, tf.uint8)), tf.bool)
        return everyones


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A gradient with other values."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(change(value.values), value.indices, value.dense_shape)
    return None if value is None else change(value)


class _Current(threading.local):
    """What this thread is in.

    Attributes:
        step: being traced or run.
        shape: of the values of the loss that is being computed, before they are reduced; None before that is known.
    """

    step: Step | None = None
    shape: Any = None


_current = _Current()


def current_step() -> Step | None:
    """The step that this thread builds or runs; None outside of one."""
    return _current.step


@contextmanager
def within(step: Step | None) -> Iterator[None]:
    before, _current.step = _current.step, step
    try:
        yield
    finally:
        _current.step = before


def divided_step(
    train_step: Callable[[Any], Any], division: Division, share: Any, *, of_keras: bool
) -> Callable[[Any], Any]:
    """The training step for the elements of ``Division.parts_of``, and for batches, which it divides.

    Args:
        train_step: of the model, for this rank's part.
        division: of the batches.
        share: a variable that gets this rank's part of each batch, where the step is not Keras's; else None.
        of_keras: see ``Step``.
    """

    def step(element: Any) -> Any:
        total, part, spare = element if isinstance(element, Part) else division.part_of(_as_tensors(element))
        leaves = [one for one in tf.nest.flatten(part, expand_composites=False) if has_rows(one)]
        rows = rows_of(leaves[0])
        begin = division.bounds(total)[0] if division.shards_data else rows * division.rank
        dense = [one for one in leaves if isinstance(one, tf.Tensor)] if spare else []
        current = Step(rows, total, of_keras, begin, tuple(zip(dense, spare, strict=True)))
        if share is not None:
            share.assign(tf.cast(current.share, tf.float32))
        with within(current), own_seed(division.rank):
            return train_step(part)

    return step


def _as_tensors(batch: Any) -> Any:
    """The batch of ``train_on_batch``, which has arrays where it runs eagerly."""
    return tf.nest.map_structure(lambda one: None if one is None else tf.convert_to_tensor(one), batch)


def weigh_loss(loss: Any, optimizers: Iterable[Any]) -> Any:
    """The loss that these optimizers have scaled, times this rank's share: their gradients have it then."""
    step = _current.step
    if step is None:
        return loss
    step.scaled.update(map(id, optimizers))
    # Gradients of a loss of each row, with reduction="none", are those of their sum.
    return step.shared(loss if len(loss.shape) == 0 else step.summed(tf.reduce_sum(loss)))


def weigh(gradients: Sequence[Any], optimizer: Any) -> Sequence[Any]:
    """The gradients that an optimizer is given in a step, times this rank's share if its loss did not get it."""
    step = _current.step
    if step is None:
        return gradients
    if id(optimizer) not in step.scaled:
        return list(map(step.shared, gradients))
    step.scaled.remove(id(optimizer))
    return gradients if step.of_keras else list(map(step.kept, gradients))


def rounded(reduced: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """The ranks' summed gradients as they are in one process: those that each rank has computed in float16 may be too
    large for it together.
    """
    return [
        tf.cast(tf.cast(one, tf.float16), one.dtype) if _is_of_half(mine) else one
        for one, mine in zip(reduced, gradients, strict=True)
    ]


def _is_of_half(gradient: Any) -> bool:
    """True for a gradient that is cast from float16; it is not seen where the step is not traced."""
    if not isinstance(gradient, tf.Tensor) or not hasattr(gradient, "graph"):
        return False
    return bool(gradient.op.type == "Cast" and gradient.op.inputs[0].dtype == tf.float16)


def update_mean(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """``Mean.update_state``, in a step with a rank's share of what is one number for the whole batch."""
    step = _current.step
    if step is None or isinstance(values, tf.RaggedTensor):
        return original(metric, values, sample_weight=sample_weight)
    values = tf.convert_to_tensor(values)
    if values.shape.rank == 0:
        values = tf.where(step.rows > 0, values, tf.zeros_like(values))
        sample_weight = tf.cast(step.share, metric.dtype) if sample_weight is None else sample_weight
    values, sample_weight = step.counted(values), step.counted(sample_weight)
    return original(metric, values, sample_weight=sample_weight)


def update_counted(original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
    """``update_state`` of Keras's other metrics, which in a layer get no row that stands for none."""
    step = _current.step
    if step is not None and step.is_filled:
        args, kwargs = tf.nest.map_structure(
            lambda one: step.counted(one) if tf.is_tensor(one) else one, (args, kwargs)
        )
    return original(metric, *args, **kwargs)


def replace_updates(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Lets all metrics of Keras's count rows that this rank has, once a process."""
    kinds = keras.metrics
    apart = {_owner(one) for one in (kinds.Metric, kinds.Mean, kinds.MeanMetricWrapper)}
    given = {_owner(one) for one in vars(kinds).values() if isinstance(one, type) and issubclass(one, kinds.Metric)}
    for kind in given - apart:
        replace_method(kind, "update_state", update_counted)
    replace_method(kinds.MeanMetricWrapper, "update_state", update_with_function)


def _owner(kind: Any) -> Any:
    """The class of which a class of metrics has ``update_state``."""
    return next(one for one in kind.__mro__ if "update_state" in vars(one))


def sum_of_all(counted: Any) -> Any:
    """The sum over the ranks of what a loss is a mean over: a float64 scalar."""
    with reductions.unnoted():
        return allreduce(tf.stop_gradient(counted), op=Sum)


def compute_loss(original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
    """``Loss.__call__``, in a step with the rows of all ranks where the values of the loss are not those of rows."""
    step = _current.step
    if step is None:
        return original(loss, y_true, y_pred, *args, **kwargs)
    before, _current.shape = _current.shape, None
    try:
        result, shape = original(loss, y_true, y_pred, *args, **kwargs), _current.shape
    finally:
        _current.shape = before
    if not _goes_along_the_batch(loss) and (shape is None or _are_of_rows(shape, loss.call, y_true, y_pred)):
        return result
    everyones = tf.nest.map_structure(step.whole, (y_true, y_pred, *args))
    with within(None):
        return original(loss, *everyones, **{name: step.whole(value) for name, value in kwargs.items()})


def note_values(values: Any) -> None:
    """A loss that is computed on this thread has these values, before they are reduced."""
    _current.shape = values.shape


def _goes_along_the_batch(function: Any) -> bool:
    """True for a loss or a metric of Keras's whose axis is that of the batch."""
    return 0 in tf.nest.flatten(getattr(function, "_fn_kwargs", {}).get("axis"))


def _are_of_rows(shape: Any, function: Callable[[Any, Any], Any], *arguments: Any) -> bool:
    """True if values of this shape are one or more for each row of a function's arguments, not one for each class."""
    if shape.rank == 0:
        return False
    if shape.rank is None or shape[0] is None:
        return True
    leaves = map(tf.convert_to_tensor, tf.nest.flatten(arguments, expand_composites=True))
    if shape[0] not in {one.shape[0] for one in leaves if has_rows(one)}:  # the number of rows is known later
        return False
    twice = tf.nest.map_structure(lambda one: tf.concat([one, one], 0) if has_rows(one) else one, arguments)
    with within(None):
        return bool(shape[0] == 0 or function(*twice).shape[0] != shape[0])


def update_with_function(
    original: Callable[..., Any], metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """``MeanMetricWrapper.update_state``, in a step with the rows of all ranks where the values of its function are not
    those of rows: then each rank counts the whole batch.
    """
    step = _current.step
    if step is None or _is_of_rows(metric, y_true, y_pred):
        return original(metric, y_true, y_pred, sample_weight=sample_weight)
    everyones = tf.nest.map_structure(step.whole, (y_true, y_pred, sample_weight))
    with within(None):
        return original(metric, everyones[0], everyones[1], sample_weight=everyones[2])


def _is_of_rows(metric: Any, y_true: Any, y_pred: Any) -> bool:
    """True for a metric whose function has values of rows."""
    if _goes_along_the_batch(metric):
        return False
    if getattr(metric._fn, "__module__", "").partition(".")[0] in ("keras", "tf_keras"):
        return getattr(metric._fn, "__name__", "") not in _OF_A_BATCH

    def function(y_true: Any, y_pred: Any) -> Any:
        return metric._fn(y_true, y_pred, **metric._fn_kwargs)

    with within(None):
        values = function(y_true, y_pred)
    return _are_of_rows(values.shape, function, y_true, y_pred)
