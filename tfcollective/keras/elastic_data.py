"""The data of an elastic ``fit``: what is left of an epoch, divided among the ranks that there are."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tfcollective.elastic.sampler import Division, order_of
from tfcollective.errors import InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow.dataset_order import is_shard, left_to_chance, reshuffles, seeds_of

_BATCH = 32  # Keras's
_FUNCTION = "fit(lambda epoch: data.shuffle(1000, seed=epoch, reshuffle_each_iteration=False).batch(32), ...)"


@dataclass(frozen=True)
class Part:
    """What this rank trains on in one world, of one epoch.

    Attributes:
        dataset: its batches.
        steps: how many these are, the same on all ranks.
        division: says where in the epoch all ranks are after some of them.
    """

    dataset: Any
    steps: int
    division: Division


class Source(Protocol):
    """All data of a training, the same on all ranks."""

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """What is left for this rank of an epoch of which `done` elements are done."""

    def fingerprint(self) -> str:
        """Says whether two ranks have the same data, as far as can be seen at little cost."""


def source_of(arguments: Mapping[str, Any], seed: int) -> Source:
    """The data that the arguments of ``fit`` give.

    Raises:
        UnsupportedError: data of a kind that cannot be divided anew.
        InvalidArgumentError: data that may differ from rank to rank, or arguments that do not go together.
    """
    x = arguments["x"]
    if arguments["steps_per_epoch"] is not None:
        raise UnsupportedError(
            "steps_per_epoch: with Elastic an epoch is all of the data, so that it can be divided anew: "
            "take(n) of a dataset says how much that is"
        )
    if isinstance(x, tf.data.Dataset):
        _check_alone(arguments, "a tf.data.Dataset")
        return _Datasets(lambda epoch: x)
    if callable(x):
        _check_alone(arguments, "a function of the epoch")
        return _Datasets(x)
    if x is None or hasattr(x, "__next__") or (hasattr(x, "__getitem__") and not _is_arrays(x)):
        raise UnsupportedError(
            f"x: Elastic divides arrays, a tf.data.Dataset, or a function that gives one for an epoch, not "
            f"{type(x).__name__}: make a tf.data.Dataset of it"
        )
    if arguments["validation_split"] and arguments["validation_data"] is None:
        raise UnsupportedError("validation_split: with Elastic pass validation_data")
    given = [arguments[name] for name in ("x", "y", "sample_weight")]
    while given[-1] is None:
        given.pop()
    return _Arrays(given, arguments["batch_size"] or _BATCH, bool(arguments["shuffle"]), seed)


def _check_alone(arguments: Mapping[str, Any], what: str) -> None:
    for name in ("y", "sample_weight", "batch_size"):
        if arguments[name] is not None:
            raise InvalidArgumentError(f"{name}: x is {what}, which has to have it")


def _is_arrays(x: Any) -> bool:
    return hasattr(x, "shape") or isinstance(x, dict | list | tuple)


class _Arrays:
    """Arrays whose rows are the elements."""

    def __init__(self, given: list[Any], batch: int, shuffle: bool, seed: int) -> None:
        self._batch, self._shuffle, self._seed = batch, shuffle, seed
        self._arrays = _tuples(given, _rows)
        leaves = tf.nest.flatten(self._arrays)
        counts = {int(leaf.shape[0]) for leaf in leaves}
        if len(counts) != 1:
            raise InvalidArgumentError(f"x, y, sample_weight: expected the same number of rows, got {sorted(counts)}")
        (self._total,) = counts
        if self._total == 0:
            raise InvalidArgumentError("x: it has no rows")

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """See :class:`Source`."""
        division = _division(self._total, done, self._batch, rank, size)
        places = order_of(self._total, self._shuffle, self._seed, epoch)[division.places()]
        own, batch, arrays = tf.constant(places, tf.int64), self._batch, self._arrays

        def pick(step: Any) -> Any:
            rows = own[step * batch : (step + 1) * batch]  # of no fixed length: the function is not traced again
            return tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)

        dataset = tf.data.Dataset.range(division.steps).map(pick, num_parallel_calls=tf.data.AUTOTUNE)
        return Part(dataset.prefetch(tf.data.AUTOTUNE), division.steps, division)

    def fingerprint(self) -> str:
        """See :class:`Source`: shapes, types, and the bytes of the first and the last row."""
        leaves = tf.nest.flatten(self._arrays)
        kinds = [f"{leaf.dtype.name}{leaf.shape.as_list()}" for leaf in leaves]
        ends = b"".join(leaf[row].numpy().tobytes() for leaf in leaves if leaf.dtype != tf.string for row in (0, -1))
        return f"{' '.join(kinds)} {zlib.crc32(ends):08x}"


def _tuples(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The structure with tuples for lists, which tf.data would make tensors of."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(item, leaf) for item in value)
    if isinstance(value, Mapping):
        return {key: _tuples(item, leaf) for key, item in value.items()}
    return leaf(value)


def _rows(array: Any) -> Any:
    """A dense tensor with rows, in Keras's type if it has floating point."""
    if isinstance(array, tf.RaggedTensor | tf.SparseTensor) or not hasattr(array, "shape") or len(array.shape) == 0:
        raise UnsupportedError(
            f"x, y, sample_weight: expected arrays with one row for each element, got {type(array).__name__}: "
            "make a tf.data.Dataset of it"
        )
    tensor = tf.convert_to_tensor(array)
    return tf.cast(tensor, tf.keras.backend.floatx()) if tensor.dtype.is_floating else tensor


class _Datasets:
    """The elements are those of a dataset that has the same order on all ranks: batches, as a rule."""

    def __init__(self, of_epoch: Callable[[int], Any]) -> None:
        self._of_epoch = of_epoch

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """See :class:`Source`."""
        whole = self._of_epoch(epoch)
        total = _checked_cardinality(whole)
        division = _division(total, done, 1, rank, size)
        if division.pad:
            place = int(division.places()[0])
            return Part(whole.skip(place).take(1), 1, division)
        dataset = whole.skip(done).take(division.steps * size).shard(size, rank)
        return Part(dataset, division.steps, division)

    def fingerprint(self) -> str:
        """See :class:`Source`: the number of elements, their types, and the seeds of their order."""
        whole = self._of_epoch(0)
        return f"{_checked_cardinality(whole)} {whole.element_spec} seeds {seeds_of(whole)}"


def _division(total: int, done: int, batch: int, rank: int, size: int) -> Division:
    """At least one step, also where a world that has grown finds less than one element for each rank."""
    division = Division(total, done, batch, rank, size)
    if division.steps == 0 and done == 0:
        raise InvalidArgumentError(
            f"x: its {total} elements are not enough for {size} ranks; the elements of a dataset are its batches"
        )
    return division if division.steps else Division(total, done, batch, rank, size, pad=True)


def _checked_cardinality(dataset: Any) -> int:
    """How many elements a dataset has that gives the same ones in the same order on all ranks, each time."""
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidArgumentError(f"x: its function has to give a tf.data.Dataset, it gave {type(dataset).__name__}")
    total = int(dataset.cardinality())
    if total == tf.data.INFINITE_CARDINALITY:
        raise UnsupportedError("x: with Elastic an epoch has an end: leave out repeat(), or use take(n)")
    if total == tf.data.UNKNOWN_CARDINALITY:
        raise UnsupportedError(
            "x: how many elements it has is not known: say it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(n))"
        )
    chance = left_to_chance(dataset)
    if chance is None and reshuffles(dataset):
        chance = "a shuffle with reshuffle_each_iteration, whose order depends on how often a process has begun it"
    if chance is not None:
        raise InvalidArgumentError(
            f"x: its elements come in another order on each rank ({chance}), so they cannot be divided. Pass a "
            f"function that gives the data of an epoch, in one order: {_FUNCTION}"
        )
    if is_shard(dataset):
        raise InvalidArgumentError(
            "x: it is one rank's part already (Dataset.shard); Elastic divides it by itself: pass all of the data"
        )
    return total
