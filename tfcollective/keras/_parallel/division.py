"""The division of batches: each rank takes a slice of every batch that it trains on, and evaluates whole batches.

A rank's slice of a batch of `total` rows has ``total // size`` rows, on the first ``total % size`` ranks one more. In a
batch of fewer rows than ranks some slices are empty. What is evaluated or predicted needs no exchange in its steps, so
there a rank takes every ``size``-th batch as it is: each value is computed of the batch that one process has.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._parallel.rows import Part, batches_of, is_unordered, one_argument, spare_row


def _unwatched(dataset: Any, _division: Division | None) -> Any:
    return dataset


@dataclass(frozen=True)
class Division:
    """This rank's place among those that divide the work.

    Attributes:
        rank: of this process.
        size: the number of ranks.
        shards_data: False: each rank is given data of its own, with batches of its own.
        evaluated: places of whole batches that ranks have evaluated before; ranks take turns with the others.
    """

    rank: int
    size: int
    shards_data: bool = True
    evaluated: tuple[int, ...] = ()

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
        begin, end = self.bounds(total)
        parts = [_slice(one, begin, end, total) for one in tf.nest.flatten(batch, expand_composites=False)]
        has_some = isinstance(total, int) and end > begin
        return Part(
            tf.cast(total, tf.int64), tf.nest.pack_sequence_as(batch, parts), () if has_some else spare_row(batch)
        )

    def bounds(self, total: Any) -> tuple[Any, Any]:
        """Where this rank's slice of `total` rows begins and ends: of their type."""
        base, extra = total // self.size, total % self.size
        begin = base * self.rank + _smaller(self.rank, extra)
        return begin, base * (self.rank + 1) + _smaller(self.rank + 1, extra)

    def parts_of(self, dataset: Any, watch: Callable[[Any, Division | None], Any] = _unwatched) -> Any:
        """The dataset of the parts (:meth:`part_of`) of the batches of `dataset`.

        Args:
            dataset: of batches.
            watch: gets a dataset of whole batches, perhaps of what their rows are computed of, and how they are
                divided, None if each rank takes all of them; returns an equal one.

        Raises:
            UnsupportedError: the ranks would have different orders, or write the same files.
        """
        if not self.slices(dataset):
            alone = dataclasses.replace(self, shards_data=False)
            return watch(dataset, None).map(one_argument(dataset, alone.part_of))
        dataset = _in_order(dataset)
        batches = batches_of(dataset)
        if batches is None:
            return watch(dataset, self).map(one_argument(dataset, self.part_of))
        return batches.slices(self.bounds, lambda source: watch(source, self))

    def whole_batches_of(self, dataset: Any, together: int = 1) -> Any:
        """The dataset of this rank's whole batches: ranks take `together` of them in turns.

        Raises:
            UnsupportedError: the ranks would have different orders, or write the same files.
        """
        if not self.slices(dataset):
            return dataset
        dataset = _in_order(dataset)
        if together > 1:
            return self._own(dataset, together)
        batches = batches_of(dataset)
        mine = None if batches is None else batches.some(self._own)
        return self._own(dataset) if mine is None else mine

    def _own(self, dataset: Any, together: int = 1) -> Any:
        if together == 1 and not self.evaluated:
            return dataset.shard(self.size, self.rank)
        numbered = dataset.enumerate().filter(lambda place, _: self.takes(place // together))
        return numbered.map(lambda _, batch: batch)

    def takes(self, place: Any) -> Any:
        """True if this rank takes what is at `place`, as ranks take turns: a bool, of a tensor a tensor."""
        if not self.shards_data:
            return True
        if not self.evaluated:
            return place % self.size == self.rank
        if isinstance(place, int):
            before = bisect.bisect_left(self.evaluated, place)
            is_new = before == len(self.evaluated) or self.evaluated[before] != place
            return is_new and (place - before) % self.size == self.rank
        places = tf.constant((*self.evaluated, tf.int64.max), tf.int64)
        before = tf.searchsorted(places, [place], out_type=tf.int64)[0]
        return (places[before] != place) & ((place - before) % self.size == self.rank)

    def places(self, count: int) -> list[int]:
        """The first `count` places that this rank takes."""
        return list(itertools.islice(filter(self.takes, itertools.count()), count))

    def slices(self, data: Any) -> bool:
        """True if ranks take slices of the batches of these data, False if each takes all that it is given."""
        if not isinstance(data, tf.data.Dataset):
            return self.shards_data
        policy = data.options().experimental_distribute.auto_shard_policy
        return self.shards_data and policy is not tf.data.experimental.AutoShardPolicy.OFF


def _in_order(dataset: Any) -> Any:
    """The dataset with one order on all ranks: otherwise rows would be trained on twice, or never."""
    ahead = [dataset]
    while ahead:
        one = ahead.pop()
        if is_unordered(one):  # options do not change it
            raise UnsupportedError(
                "a dataset with deterministic=False has another order on each rank: leave that out, or pass "
                "DataParallel(auto_shard_dataset=False) and shard the data"
            )
        if _is_written_to(getattr(one, "_filename", None)):
            raise UnsupportedError(
                "a dataset with cache(filename): all ranks would write the file at the same time: leave out its name, "
                "or write it first, in one process that reads all of the dataset"
            )
        ahead += one._inputs()
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _is_written_to(cache: Any) -> bool:
    """True for the name of a file that a dataset writes; TensorFlow adds its index when it is complete."""
    name = tf.get_static_value(cache) if isinstance(cache, tf.Tensor) and cache.shape.rank == 0 else None
    return bool(name) and not tf.io.gfile.exists(f"{tf.compat.as_str(name)}.index")


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
    if not isinstance(total, int) or value.shape[0] is None:
        message = "the parts of a batch have different numbers of rows, so they cannot be divided over the ranks"
        equal = tf.raw_ops.Assert(condition=tf.equal(rows_of(value), tf.cast(total, tf.int64)), data=[message])
        with tf.control_dependencies([] if equal is None else [equal]):
            value = tf.identity(value) if isinstance(value, tf.Tensor) else value
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    rank = tf.size(value.dense_shape, tf.int64)
    start = tf.one_hot(0, tf.cast(rank, tf.int32), tf.cast(begin, tf.int64), tf.constant(0, tf.int64))
    rows = tf.cast(end, tf.int64) - tf.cast(begin, tf.int64)
    size = tf.concat([[rows], value.dense_shape[1:]], 0)
    part = tf.sparse.slice(value, start, size)
    return tf.sparse.reshape(part, size)
