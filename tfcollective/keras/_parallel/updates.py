"""Metrics whose states cannot be merged: each rank updates them with the rows of all ranks.

In training, each update gets the rows of the whole batch. An evaluation notes with what a rank has updated them; at the
end all ranks make the updates of all batches again, in the order of the data, as one process makes them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._copies import replace_method
from tfcollective.keras._parallel.division import has_rows
from tfcollective.keras._parallel.rounds import rounds
from tfcollective.keras._parallel.step import Step, current_step, within
from tfcollective.tensorflow._objects import allgather_object

MOST = 256 << 20  # bytes that a rank notes in an evaluation
_RECORD = "_tfcollective_record"
_RAW = (
    "give it merge_state(self, metrics), which takes in the states of other metrics of its class, as for counts: for "
    "one in metrics: self.count.assign_add(one.count)"
)
_classes: weakref.WeakSet[type] = weakref.WeakSet()  # whose updates are seen


@dataclass(frozen=True)
class Update:
    """One call of ``update_state``.

    Attributes:
        leaves: of the arguments; arrays in place of tensors.
        masks: Keras's, of the leaves; None for most.
        structure: of the arguments.
    """

    leaves: list[Any]
    masks: list[Any]
    structure: Any

    @property
    def bytes(self) -> int:
        return sum(int(getattr(one, "nbytes", 0)) for one in (*self.leaves, *self.masks))

    def apply(self, metric: Any) -> None:
        """Makes it again."""
        leaves = [tf.constant(one) if isinstance(one, np.ndarray | np.generic) else one for one in self.leaves]
        for leaf, mask in zip(leaves, self.masks, strict=True):
            if mask is not None:
                leaf._keras_mask = tf.constant(mask)
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        metric.update_state(*args, **kwargs)


class Record:
    """What a model's metrics were updated with in an evaluation.

    Attributes:
        batches: for each batch, the metrics' names in this process and the updates.
        full: the updates are more than the bound, and none are kept.
        notes: an evaluation is recorded.
        function: of the model, which notes.
    """

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, Update]]] = []
        self.full = False
        self.notes = False
        self.function: Any = None
        self._bytes = 0

    def begin(self) -> None:
        """An evaluation begins."""
        self.batches, self.full, self._bytes, self.notes = [], False, 0, True

    def end(self) -> None:
        """It has ended; later runs of the model's function note nothing."""
        self.batches, self.notes = [], False

    def watching(self, test_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The evaluation step, whose updates are noted."""

        def step(data: Any) -> Any:
            _effect(self._begin_batch, [])
            before, _current.record = _current.record, self
            try:
                return test_step(data)
            finally:
                _current.record = before

        return step

    def has(self, metric: Any) -> bool:
        """True if an update of this metric was noted."""
        return any(number == id(metric) for batch in self.batches for number, _ in batch)

    def note(self, metric: Any, args: Any, kwargs: Any) -> None:
        """An update is made, or built."""
        structure = (args, kwargs)
        leaves = tf.nest.flatten(structure, expand_composites=False)
        _check_dense(metric, leaves)
        masks = [getattr(one, "_keras_mask", None) for one in leaves]
        everything = [*leaves, *masks]
        tensors = [place for place, one in enumerate(everything) if tf.is_tensor(one) or isinstance(one, np.ndarray)]
        structure = tf.nest.map_structure(lambda _: 0, structure)
        number, rows = id(metric), len(leaves)
        others = [None if place in tensors else one for place, one in enumerate(everything)]

        def add(*values: Any) -> None:
            found = list(others)
            for place, value in zip(tensors, values, strict=True):
                found[place] = np.array(value)
            self._add(number, Update(found[:rows], found[rows:], structure))

        _effect(add, [tf.convert_to_tensor(everything[place]) for place in tensors])

    def _begin_batch(self) -> None:
        if self.notes:
            self.batches.append([])

    def _add(self, number: int, update: Update) -> None:
        if not self.notes or self.full:
            return
        self._bytes += update.bytes
        if self._bytes > MOST:
            self.full, self.batches = True, []
        else:
            self.batches[-1].append((number, update))


def _effect(function: Callable[..., None], values: list[Any]) -> None:
    """Calls a function of arrays when the step runs, in the order of the step."""
    if tf.executing_eagerly():
        function(*[one.numpy() for one in values])
        return

    def called(*arrays: Any) -> Any:
        function(*arrays)
        return np.int64(0)

    tf.numpy_function(called, values, tf.int64, stateful=True)


class _Current(threading.local):
    """What this thread is in.

    Attributes:
        record: of the evaluation step that is being traced or run.
        metric: whose update is being traced or run.
    """

    record: Record | None = None
    metric: Any = None


_current = _Current()


def see_updates(metric: Any) -> None:
    """From here on the updates of metrics of this class are seen, wherever they are made."""
    owner = next(kind for kind in type(metric).__mro__ if "update_state" in vars(kind))
    if owner not in _classes:
        replace_method(owner, "update_state", _update)
        _classes.add(owner)
    own = vars(metric).get("update_state")
    if own is not None and not hasattr(own, "_tfcollective"):  # Keras 2 keeps that of the class in the object

        def update_state(*args: Any, **kwargs: Any) -> Any:
            return _update(lambda _, *given, **named: own(*given, **named), metric, *args, **kwargs)

        update_state._tfcollective = True  # type: ignore[attr-defined]
        object.__setattr__(metric, "update_state", update_state)


def are_seen(metric: Any) -> bool:
    """True if the updates of this metric are seen."""
    owner = next((kind for kind in type(metric).__mro__ if "update_state" in vars(kind)), object)
    return owner in _classes


def _update(original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
    if _current.metric is metric:
        return original(metric, *args, **kwargs)
    step, record = current_step(), _current.record
    before, _current.metric = _current.metric, metric
    try:
        if step is not None:
            args, kwargs = _of_all(step, metric, args, kwargs)
        elif record is not None:
            record.note(metric, args, kwargs)
        with within(None):
            return original(metric, *args, **kwargs)
    finally:
        _current.metric = before


def _of_all(step: Step, metric: Any, args: Any, kwargs: Any) -> Any:
    """The arguments with the rows of all ranks."""
    leaves = [one for one in tf.nest.flatten((args, kwargs), expand_composites=False) if one is not None]
    _check_dense(metric, leaves)
    if not all(has_rows(tf.convert_to_tensor(one)) for one in leaves):
        raise UnsupportedError(
            f"metric {metric.name}: {type(metric).__name__} has an update_state of its own, which gets a number for "
            f"the whole batch, and each rank has another: {_RAW}"
        )
    return tf.nest.map_structure(step.whole, (args, kwargs))


def _check_dense(metric: Any, leaves: Sequence[Any]) -> None:
    if any(isinstance(one, tf.RaggedTensor | tf.SparseTensor) for one in leaves):
        raise UnsupportedError(
            f"metric {metric.name}: {type(metric).__name__} has an update_state of its own, and ragged and sparse rows "
            f"are not gathered for it: {_RAW}"
        )


def refusal(metrics: Sequence[Any], record: Record | None, *, evaluates: bool) -> str:
    """What the error says about metrics whose states cannot be merged, in a run that has ended; empty if all is well.

    Args:
        metrics: of this rank.
        record: of this rank's evaluation; None if there is none.
    """
    for metric in metrics:
        own = f"metric {metric.name}: {type(metric).__name__} has an update_state of its own, and "
        if record is not None and record.full:
            return f"{own}the rows of this evaluation are more than {MOST >> 20} MiB on a rank: {_RAW}"
        if not are_seen(metric) or (evaluates and not (record is not None and record.has(metric)) and _counts(metric)):
            return f"{own}tfcollective cannot know how the states of several ranks become one: {_RAW}"
    return ""


def _counts(metric: Any) -> bool:
    """True if a metric, of which no update was noted, has counted something."""
    before = [tf.identity(variable).numpy() for variable in metric.variables]
    metric.reset_state()
    after = [tf.identity(variable).numpy() for variable in metric.variables]
    return not all(map(np.array_equal, before, after))


def recording_of(model: Any) -> Record | None:
    """The record of the evaluation that a model is in; None if it has none."""
    record: Record | None = getattr(model, _RECORD, None)
    return record if record is not None and record.notes else None


def _record_of(model: Any) -> Record:
    """The record of the evaluations of a model."""
    record: Record | None = getattr(model, _RECORD, None)
    if record is None:
        record = Record()
        object.__setattr__(model, _RECORD, record)
    return record


@contextmanager
def recording(model: Any) -> Iterator[None]:
    """Within it, an evaluation of the model is recorded. The function of its evaluation step stays, and notes nothing
    outside of it."""
    record, compiled = _record_of(model), getattr(model, "jit_compile", False)
    if model.test_function is not record.function:
        model.test_function = None
    own = vars(model).get("test_step")
    object.__setattr__(model, "test_step", record.watching(model.test_step))
    object.__setattr__(model, "_jit_compile", False)  # XLA calls nothing in Python
    record.begin()
    try:
        yield
    finally:
        record.end()
        record.function = model.test_function
        object.__setattr__(model, "_jit_compile", compiled)
        if own is None:
            object.__delattr__(model, "test_step")
        else:
            object.__setattr__(model, "test_step", own)


def update_again(metrics: Sequence[Any], record: Record | None, together: int, first: int) -> None:
    """Makes the updates of all ranks' batches, which ranks took in turn; all ranks call it.

    Args:
        metrics: the same on all ranks that have evaluated a batch; empty on others.
        record: of this rank.
        together: the number of batches that a rank took at once.
        first: the rank that took the first ones.
    """
    places = {id(metric): place for place, metric in enumerate(metrics)}
    batches = [] if record is None else record.batches
    turns = [
        [(places[number], update) for batch in batches[begin : begin + together] for number, update in batch]
        for begin in range(0, len(batches), together)
    ]
    sizes = allgather_object([sum(update.bytes for _, update in one) for one in turns], name="rows of metrics")
    for metric in metrics:
        metric.reset_state()
    for begin, end in rounds(sizes):
        everyones = allgather_object(turns[begin:end], name="rows of metrics")
        for turn in range(end - begin):
            for theirs in (*everyones[first:], *everyones[:first]):
                for place, update in theirs[turn] if turn < len(theirs) and metrics else ():
                    update.apply(metrics[place])
