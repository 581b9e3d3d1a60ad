"""The place of a training in its data, so that a run that resumes need not compute the batches that are done.

The state of TensorFlow's iterator has what is read ahead, the buffers and seeds of shuffles and positions in files. It
has not what functions keep elsewhere: random generators of operations, variables and Python. So the state of a new
iterator, with the seeds of its epoch, counts for all data, and that of one which was read from for pure functions.
Otherwise the batches that are done are read again from the epoch's start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfcollective.keras._parallel.rows import is_pure
from tfcollective.tensorflow._dataset_order import pipeline

_MOST_BYTES = 1 << 26  # of a state: a shuffle's buffer of images would be exchanged with each backup
_IGNORE = 1  # TensorFlow's policy for functions with a state, which are looked at here

State = bytes | str  # of an iterator; or the reason why there is none


class SavedPlace(NamedTuple):
    """A place in the data of an epoch.

    Attributes:
        start: the state of the iterator where the epoch begins.
        now: its state.
    """

    start: State
    now: State


NOWHERE = SavedPlace("", "")


class DataPlace:
    """The iterator that Keras reads while ``fit`` trains, and the place in it."""

    def __init__(self) -> None:
        self._iterator: Any = None
        self._start: State = ""
        self._refusal: str | None = None

    def begin(self, iterator: Any) -> None:
        """An epoch begins with this iterator, as a rule a new one."""
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None:
            self._refusal = self._start = f"{type(iterator).__name__} has no state"
        elif iterator is not self._iterator:
            self._refusal, self._start = _refusal(dataset), _state_of(iterator)
        elif dataset.cardinality() != tf.data.INFINITE_CARDINALITY:  # Keras would miss the end in a later epoch
            self._refusal = self._start = "several epochs share data that have an end"
        else:
            self._start = self._refusal or _state_of(iterator)
        self._iterator = iterator

    def save(self) -> SavedPlace:
        """Returns the place, from which ``resume`` goes on."""
        if self._refusal is not None:
            return SavedPlace(self._start, self._refusal)
        now = _state_of(self._iterator)
        if isinstance(now, str):
            self._refusal = now
        return SavedPlace(self._start, now)

    def resume(self, iterator: Any, batches: int, place: SavedPlace) -> str | None:
        """Brings a new iterator to a place; returns why its batches had to be read for that, None if they had not.

        Args:
            iterator: that Keras reads from next.
            batches: how many of the epoch are done.
            place: what ``save`` has returned after them.
        """
        _restore(iterator, place.start)
        self.begin(iterator)
        if not batches:
            return None
        if _restore(iterator, place.now):
            # The state of an iterator at the end of its data has no seeds, from which those of later epochs follow.
            if iterator._dataset.cardinality() != tf.data.INFINITE_CARDINALITY:
                _restore(iter(iterator._dataset), place.start)
            return None
        for _ in range(batches):
            next(iterator)
        return place.now if isinstance(place.now, str) else "the state in the backup is of other data"


def _state_of(iterator: Any) -> State:
    handle = iterator._iterator_resource
    try:
        state = tf.raw_ops.SerializeIterator(resource_handle=handle, external_state_policy=_IGNORE)
    except tf.errors.OpError as error:
        return str(error.message)
    serialized: bytes = tf.io.serialize_tensor(state).numpy()
    if len(serialized) > _MOST_BYTES:
        return f"the state has {len(serialized) >> 20} MiB, as of a shuffle"
    return serialized


def _restore(iterator: Any, state: State) -> bool:
    """Returns whether the iterator has the state now; if not, it begins again."""
    if isinstance(state, str):
        return False
    handle, variant = iterator._iterator_resource, tf.io.parse_tensor(state, tf.variant)
    try:
        tf.raw_ops.DeserializeIterator(resource_handle=handle, serialized=variant)
    except tf.errors.OpError:
        tf.raw_ops.MakeIterator(dataset=iterator._dataset._variant_tensor, iterator=handle)
        return False
    return True


def _refusal(dataset: Any) -> str | None:
    """Returns why the state of an iterator of `dataset` that was read from would not do; None if nothing is known."""
    whole = getattr(dataset, "_tfcollective_whole", dataset)  # shuffles that were moved hide what is before them
    for part in pipeline(whole):
        kind = type(part).__name__.strip("_")
        ours = hasattr(part, "_tfcollective_sample")
        if not ours and not all(is_pure(function.function) for function in part._functions()):
            return f"a function of {kind} draws random numbers, runs Python or keeps a state"
        if kind == "RepeatDataset" and dataset.cardinality() != tf.data.INFINITE_CARDINALITY:
            return "a repeat that ends"  # at its end there are no seeds in the state, and it has drawn several
    return None
