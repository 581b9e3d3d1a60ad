"""A sample of the rows that ``fit`` trains on in its first epoch, by which ranks see whether they divide the data.

A hash of each row is taken from its content, beside the step, and the rows with the largest hashes are kept: all ranks
keep the same rows if they have them, in whatever order. So a few hundred are enough to see how many rows two ranks
share. Where ``fit`` itself divides batches, all ranks read the same batches, which is compared, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective.keras._parallel.division import Division, has_rows
from tfcollective.keras._parallel.run import run
from tfcollective.tensorflow._variables import make_eagerly

ROWS = 256  # that are kept
BATCHES = 64  # whose content and order are compared: the last ones
NO_SAMPLE = np.full(ROWS + BATCHES, -1, np.int64)  # of a rank that does not sample
_COLUMNS = 64  # of a tensor, from its first to its last; of one whose rows differ in length the first
_TENSORS = 16  # of a batch
_LARGEST = np.iinfo(np.int64).max


class RowSample:
    """The sample of one rank.

    Attributes:
        elements: the structure and the types of the batches; None while they are not known.
    """

    def __init__(self) -> None:
        self._division: Division | None = None
        self.elements: str | None = None
        self._kept = make_eagerly(lambda: tf.constant(NO_SAMPLE), "row_sample", "CPU:0")
        self._left = make_eagerly(lambda: tf.constant(0, tf.int64), "batches_to_sample", "CPU:0")

    def watch(self, dataset: Any, division: Division | None = None) -> Any:
        """The same dataset of batches, whose rows are sampled when they are read.

        Args:
            dataset: of whole batches.
            division: this rank trains on its slices of the batches, which are sampled; None: on all of them.
        """
        self._division = division
        if not isinstance(dataset, tf.data.Dataset):
            return dataset
        self.elements = str(tf.nest.map_structure(_described, dataset.element_spec, expand_composites=False))
        if not _samples_of(dataset.element_spec):
            return dataset

        def noted(*batch: Any) -> Any:
            tf.cond(self._left > 0, lambda: self._note(hashes(batch)), lambda: tf.constant(0, tf.int64))
            return batch if isinstance(dataset.element_spec, tuple) else batch[0]

        sampled = dataset.map(tf.autograph.experimental.do_not_convert(noted))
        sampled._tfcollective_sample = self  # the variables live as long as what reads
        return sampled

    def _note(self, rows: Any) -> Any:
        mine = rows if self._division is None else self._division.part_of(rows).batch
        kept = tf.math.top_k(tf.concat([self._kept[:ROWS], mine], 0), ROWS).values
        places = 2 * tf.range(tf.size(rows, tf.int64), dtype=tf.int64) + 1
        digest = tf.bitwise.bitwise_and(tf.reduce_sum(rows * places), _LARGEST)
        self._kept.assign(tf.concat([kept, [digest], self._kept[ROWS:-1]], 0))
        return self._left.assign_sub(1)

    def begin(self, batches: int | None) -> None:
        """Begins with the next batch that is read.

        Args:
            batches: of the epoch; what is read ahead of it for the next one is no part of the sample.
        """
        self._kept.assign(NO_SAMPLE)
        self._left.assign(_LARGEST if batches is None else batches)

    def end(self) -> Any:
        """Ends the sample; returns an array of the hashes of rows, then of the last batches, -1 where there is none."""
        self._left.assign(0)
        return self._kept.numpy()


def hashes(batch: Any) -> Any:
    """Hashes of the rows of a batch, int64, 0 or more; equal for equal rows, in every process.

    Args:
        batch: tensors in any structure; those that are not dense, or have no rows, do not count.
    """
    first, *others = (tf.fingerprint(_columns(one)) for one in _samples_of(batch))
    if others:
        first = tf.fingerprint(tf.concat([first, *(_as_long_as(first, one) for one in others)], 1))
    return tf.bitwise.bitwise_and(tf.bitcast(first, tf.int64), _LARGEST)


def _samples_of(batch: Any) -> list[Any]:
    """The tensors of a batch, or of its specification, that are looked at."""
    flat = tf.nest.flatten(batch, expand_composites=False)
    dense = [one for one in flat if isinstance(one, tf.Tensor | tf.TensorSpec) and one.dtype != tf.variant]
    return [one for one in dense if one.shape.rank is not None and has_rows(one)][:_TENSORS]


def _described(spec: Any) -> str:
    """Without sizes, which may differ: each rank may pad its rows to a length of its own."""
    dtype, shape = getattr(spec, "dtype", None), getattr(spec, "shape", None)
    rank = getattr(shape, "rank", None)
    return type(spec).__name__ if dtype is None else f"{dtype.name}{'' if rank is None else f' {rank}-d'}"


def _columns(value: Any) -> Any:
    """Some columns of each row; in rows that are padded to a common length, they do not depend on it."""
    columns = value.shape[1:].num_elements()
    if columns is not None and columns <= _COLUMNS:
        return value
    rows = tf.shape(value)[0]
    flat = tf.reshape(value, [rows, tf.size(value) // tf.maximum(rows, 1)])
    if columns is not None:
        return tf.gather(flat, np.linspace(0, columns - 1, _COLUMNS).astype(np.int32), axis=1)
    return tf.pad(flat[:, :_COLUMNS], [[0, 0], [0, tf.maximum(_COLUMNS - tf.shape(flat)[1], 0)]])


def _as_long_as(first: Any, other: Any) -> Any:
    """`other` itself, as a rule: the tensors of a batch need not have equally many rows where nothing is divided."""
    rows = tf.shape(first)[0]
    return tf.pad(other, [[0, tf.maximum(rows - tf.shape(other)[0], 0)], [0, 0]])[:rows]


class _Next(threading.local):
    sample: RowSample | None = None


_next = _Next()


@contextmanager
def sampling(sample: RowSample | None) -> Iterator[None]:
    """Within it, the first data that Keras iterates over on this thread, those of ``fit``, are sampled."""
    before, _next.sample = _next.sample, sample
    try:
        yield
    finally:
        _next.sample = before


def watched(dataset: Any, division: Division | None = None) -> Any:
    """The same dataset, which Keras is about to iterate over on this thread: see ``RowSample.watch``."""
    sample, _next.sample = _next.sample, None
    return dataset if sample is None else sample.watch(dataset, division)


def install(keras: Any, replace_method: Callable[..., bool]) -> None:
    """Changes what Keras iterates with, once a process; where a version of Keras has something else, nothing is seen.

    Args:
        keras: the module.
        replace_method: see ``tfcollective.keras._copies``.
    """
    for kind in keras.Model.__mro__:
        room = sys.modules[kind.__module__]
        if hasattr(room, "TFEpochIterator"):  # Keras 3
            replace_method(room.TFEpochIterator, "__init__", _watching("_distributed_dataset"))
        if hasattr(room, "data_adapter"):  # Keras 2
            handler = room.data_adapter.DataHandler
            replace_method(handler, "_configure_dataset_and_inferred_steps", _watching("_dataset"))


def _watching(attribute: str) -> Callable[..., None]:
    def made(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> None:
        original(owner, *args, **kwargs)
        if run.division is None:  # or who divides watches
            setattr(owner, attribute, watched(getattr(owner, attribute)))

    return made
