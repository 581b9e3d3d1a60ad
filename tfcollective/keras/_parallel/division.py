"""The division of batches: each rank takes a slice of every batch that it trains on, and evaluates whole batches.

A rank's slice of a batch of `total` rows has ``total // size`` rows, on the first ``total % size`` ranks one more. In a
batch of fewer rows than ranks some slices are empty. What is evaluated or predicted needs no exchange in its steps, so
there a rank takes every ``size``-th batch as it is: each value is computed of the batch that one process has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfcollective._base.errors import UnsupportedError


class Part(NamedTuple):
    """A rank's part of a batch: an element of the datasets that are divided.

    Attributes:
        total: the number of rows of all ranks' parts together, int64.
        batch: this rank's rows.
    """

    total: Any
    batch: Any


@dataclass(frozen=True)
class Division:
    """This rank's place among those that divide the work.

    Attributes:
        rank: of this process.
        size: the number of ranks.
        shards_data: False: each rank is given data of its own, with batches of its own.
    """

    rank: int
    size: int
    shards_data: bool = True

    def part_of(self, batch: Any) -> Part:
        """This rank's part of a batch; without `shards_data` all of it, and the others' are taken to be as large.

        Args:
            batch: tensors, dense, ragged or sparse, in any structure; those with rows have equally many.

        Raises:
            UnsupportedError: parts of the batch have no rows, or different numbers of rows.
        """
        total = _rows(batch)
        if not self.shards_data:
            return Part(tf.cast(total * self.size, tf.int64), batch)
        base, extra = total // self.size, total % self.size
        begin = base * self.rank + _smaller(self.rank, extra)
        end = base * (self.rank + 1) + _smaller(self.rank + 1, extra)
        parts = [_slice(one, begin, end, total) for one in tf.nest.flatten(batch, expand_composites=False)]
        return Part(tf.cast(total, tf.int64), tf.nest.pack_sequence_as(batch, parts))

    def parts_of(self, dataset: Any) -> Any:
        """The dataset of the parts (:meth:`part_of`) of the batches of `dataset`.

        Raises:
            UnsupportedError: the ranks' elements would have different orders.
        """
        dataset = _in_order(dataset) if self.shards_data else dataset
        return dataset.map(lambda *batch: self.part_of(batch if isinstance(dataset.element_spec, tuple) else batch[0]))

    def whole_batches_of(self, dataset: Any, steps: int | None) -> Any:
        """The dataset of this rank's whole batches, of the first `steps` or all.

        Raises:
            UnsupportedError: the ranks' elements would have different orders.
        """
        first = dataset if steps is None else dataset.take(steps)
        return _in_order(first).shard(self.size, self.rank) if self.shards_data else first


def _in_order(dataset: Any) -> Any:
    """The dataset with one order on all ranks; otherwise rows would be trained on twice, or never."""
    ahead = [dataset]
    while ahead:
        one = ahead.pop()
        if getattr(one, "_deterministic", None) == "false":  # options do not change it
            raise UnsupportedError(
                "a dataset with deterministic=False has another order on each rank: leave that out, or pass "
                "DataParallel(auto_shard_dataset=False) and shard the data"
            )
        ahead += one._inputs()
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _rows(batch: Any) -> Any:
    """The number of rows of a batch: an int where it is static, else a scalar int64 tensor."""
    for one in tf.nest.flatten(batch, expand_composites=False):
        if has_rows(one):
            return one.shape[0] if one.shape[0] is not None else rows_of(one)
    raise UnsupportedError(
        "a batch without rows cannot be divided over the ranks: pass arrays, or call dataset.batch()"
    )


def has_rows(value: Any) -> bool:
    """True for what has a first dimension, False for a scalar, and for an Optional where there is no value."""
    return value is not None and not isinstance(value, tf.experimental.Optional) and value.shape.rank != 0


def rows_of(value: Any) -> Any:
    """The number of rows of a tensor: a scalar int64 tensor."""
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    return tf.shape(value, tf.int64)[0]


def _smaller(first: int, second: Any) -> Any:
    return min(first, second) if isinstance(second, int) else tf.minimum(tf.cast(first, second.dtype), second)


def _slice(value: Any, begin: Any, end: Any, total: Any) -> Any:
    if not has_rows(value):
        return value
    if isinstance(total, int) and value.shape[0] is not None and value.shape[0] != total:
        raise UnsupportedError(
            f"a batch has {total} rows, and one of its parts {value.shape[0]}: they cannot be divided"
        )
    message = "the parts of a batch have different numbers of rows, so they cannot be divided over the ranks"
    with tf.control_dependencies([tf.debugging.assert_equal(rows_of(value), tf.cast(total, tf.int64), message)]):
        value = tf.identity(value) if isinstance(value, tf.Tensor) else value
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    rank = tf.size(value.dense_shape, tf.int64)
    start = tf.one_hot(0, tf.cast(rank, tf.int32), tf.cast(begin, tf.int64), tf.constant(0, tf.int64))
    rows = tf.cast(end, tf.int64) - tf.cast(begin, tf.int64)
    size = tf.concat([[rows], value.dense_shape[1:]], 0)
    part = tf.sparse.slice(value, start, size)
    return tf.sparse.reshape(part, size)
