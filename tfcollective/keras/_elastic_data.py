"""The data of an elastic ``fit``: what is left of an epoch, divided among the ranks that there are."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.elastic._sampler import Division, check_share, order_of
from tfcollective.tensorflow._dataset_order import gives_batches, is_shard, left_to_chance, reshuffles, seeds_of

_BATCH = 32  # Keras's
_OF_WORKERS = ("max_queue_size", "workers", "use_multiprocessing")  # arguments of Keras 2
_FUNCTION = "fit(lambda epoch: data.shuffle(1000, seed=epoch, reshuffle_each_iteration=False).batch(32), ...)"


@dataclass(frozen=True)
class Part:
    """The data of this rank for one epoch in one world.

    Attributes:
        dataset: its batches; ``take(n)`` gives the first n.
        steps: how many these are, the same on all ranks.
        division: says where in the epoch all ranks are after some of them.
    """

    dataset: Any
    steps: int
    division: Division


class Source(Protocol):
    """The whole data of a training, the same on all ranks."""

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """Returns what is left for this rank of an epoch of which `done` elements are done."""

    def fingerprint(self) -> str:
        """Returns a text that differs between ranks with different data, as far as that can be seen at little cost."""


def source_of(arguments: Mapping[str, Any], seed: int, global_batch: int = 0) -> Source:
    """The data that the arguments of ``fit`` give.

    Args:
        arguments: of ``fit``, by name.
        seed: of the order of rows of arrays.
        global_batch: how many rows all ranks together take in a step; 0: each rank takes batches as they are given.

    Raises:
        UnsupportedError: data of a kind that cannot be divided again.
        InvalidArgumentError: data that may differ from rank to rank, or arguments that do not go together.
    """
    x = arguments["x"]
    if arguments["steps_per_epoch"] is not None:
        raise UnsupportedError(
            "steps_per_epoch: with Elastic an epoch is all of the data, so that the rest can be divided again: "
            "limit a dataset with take(n) instead"
        )
    if isinstance(x, tf.keras.utils.Sequence):
        _check_alone(arguments, f"a {type(x).__name__}")
        _check_stays(x)
        return _BatchesByIndex(lambda _: x, bool(arguments["shuffle"]), seed, global_batch)
    if isinstance(x, tf.data.Dataset) or callable(x):
        dataset = isinstance(x, tf.data.Dataset)
        _check_alone(arguments, "a tf.data.Dataset" if dataset else "a function of the epoch")
        of_epoch = (lambda epoch: x) if dataset else x
        if not dataset and isinstance(x(0), tf.keras.utils.Sequence):
            return _BatchesByIndex(of_epoch, bool(arguments["shuffle"]), seed, global_batch)
        return _Rows(of_epoch, global_batch) if global_batch else _Datasets(of_epoch)
    if x is None or hasattr(x, "__next__") or (hasattr(x, "__getitem__") and not _is_arrays(x)):
        raise UnsupportedError(
            "x: Elastic divides arrays, a tf.data.Dataset, a PyDataset, or a function that gives one for an epoch, "
            f"not {type(x).__name__}: make a tf.data.Dataset of it"
        )
    if arguments["validation_split"] and arguments["validation_data"] is None:
        raise UnsupportedError("validation_split: with Elastic pass validation_data")
    if global_batch and arguments["batch_size"] is not None:
        raise InvalidArgumentError("batch_size: global_batch of Elastic says how many rows a step takes: leave it out")
    given = [arguments[name] for name in ("x", "y", "sample_weight")]
    while given[-1] is None:
        given.pop()
    return _Arrays(given, arguments["batch_size"] or _BATCH, bool(arguments["shuffle"]), seed, global_batch)


def _check_alone(arguments: Mapping[str, Any], what: str) -> None:
    for name in ("y", "sample_weight", "batch_size"):
        if arguments[name] is not None:
            raise InvalidArgumentError(f"{name}: x is {what}, which has to have it")


def _is_arrays(x: Any) -> bool:
    return hasattr(x, "shape") or isinstance(x, dict | list | tuple)


@dataclass(frozen=True)
class Validation:
    """The validation of a ``fit``, of which each rank evaluates a part.

    Attributes:
        arguments: of ``evaluate``, by name.
        frequency: validates after each so many epochs, or after these, counted from 1.
    """

    arguments: Mapping[str, Any]
    frequency: Any

    def is_due(self, epoch: int) -> bool:
        """True if it comes after this epoch."""
        number = epoch + 1
        return number % self.frequency == 0 if isinstance(self.frequency, int) else number in self.frequency

    def fingerprint(self) -> str:
        """Returns the fingerprint of the data, as :class:`Source` does."""
        x = self.arguments["x"]
        if isinstance(x, tf.data.Dataset):
            return f"{int(x.cardinality())} {x.element_spec} seeds {seeds_of(x)}"
        if not _is_arrays(x):
            return f"{type(x).__name__} {len(x)}"
        given = [x, self.arguments["y"], self.arguments["sample_weight"]]
        return _print_of([one for one in tf.nest.flatten(given) if one is not None])


def validation_of(arguments: Mapping[str, Any]) -> Validation | None:
    """The validation that the arguments of ``fit`` ask for; None if none.

    Raises:
        UnsupportedError: data of a kind that cannot be divided again.
        InvalidArgumentError: data that may differ from rank to rank.
    """
    data = arguments["validation_data"]
    if data is None:
        return None
    x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
    if isinstance(x, tf.data.Dataset):
        _check_order(x, "validation_data")
    elif hasattr(x, "__next__") or not (_is_arrays(x) or hasattr(x, "__getitem__")):
        raise UnsupportedError(
            f"validation_data: Elastic divides arrays, a tf.data.Dataset or a PyDataset, not {type(x).__name__}"
        )
    given = {name: arguments[name] for name in _OF_WORKERS if name in arguments}
    batch = arguments["validation_batch_size"] or arguments["batch_size"]
    given |= {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch}
    return Validation({**given, "steps": arguments["validation_steps"]}, arguments["validation_freq"])


class _Arrays:
    """Arrays whose rows are the elements."""

    def __init__(self, given: list[Any], batch: int, shuffle: bool, seed: int, global_batch: int) -> None:
        self._global_batch = global_batch
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
        division = _division(self._total, done, self._batch, rank, size, self._global_batch)
        places = order_of(self._total, self._shuffle, self._seed, epoch)[division.places()]
        own, batch, arrays = tf.constant(places, tf.int64), division.share, self._arrays

        def pick(step: Any) -> Any:
            rows = own[step * batch : (step + 1) * batch]  # of no fixed length: the function is not traced again
            return tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)

        dataset = tf.data.Dataset.range(division.steps).map(pick, num_parallel_calls=tf.data.AUTOTUNE)
        return Part(dataset.prefetch(tf.data.AUTOTUNE), division.steps, division)

    def fingerprint(self) -> str:
        """Returns the fingerprint of :class:`Source`: shapes, types, and the bytes of the first and the last row."""
        return _print_of(tf.nest.flatten(self._arrays))


def _print_of(arrays: Sequence[Any]) -> str:
    kinds = [f"{tf.as_dtype(one.dtype).name}{list(one.shape)}" for one in arrays if hasattr(one, "dtype")]
    dense = [one for one in arrays if isinstance(one, np.ndarray | tf.Tensor) and one.dtype not in (tf.string, object)]
    ends = b"".join(np.asarray(one[row]).tobytes() for one in dense if len(one) for row in (0, -1))
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
    """The source for datasets that have the same order on all ranks; their elements are batches as a rule."""

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
        """Returns the fingerprint of :class:`Source`: the number of elements, their types, and the seeds of their
        order.
        """
        whole = self._of_epoch(0)
        return f"{_checked_cardinality(whole)} {whole.element_spec} seeds {seeds_of(whole)}"


class _BatchesByIndex:
    """The source for a PyDataset, or Keras 2's Sequence: its batches are asked for by their numbers."""

    def __init__(self, of_epoch: Callable[[int], Any], shuffle: bool, seed: int, global_batch: int) -> None:
        if global_batch:
            raise UnsupportedError("x: global_batch of Elastic divides rows, and a PyDataset has batches: leave it out")
        self._of_epoch, self._shuffle, self._seed = of_epoch, shuffle, seed

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """See :class:`Source`."""
        whole = self._of_epoch(epoch)
        division = _division(_length_of(whole), done, 1, rank, size)
        order = order_of(division.total, self._shuffle, self._seed, epoch)
        return Part(_Chosen(whole, order[division.places()].tolist()), division.steps, division)

    def fingerprint(self) -> str:
        """Returns the fingerprint of :class:`Source`: the class and the number of batches, which may be random."""
        whole = self._of_epoch(0)
        return f"{type(whole).__name__} {_length_of(whole)}"


class _Chosen(tf.keras.utils.Sequence):  # type: ignore[misc]  # Keras is not typed
    """Some batches of a PyDataset, with its workers."""

    def __init__(self, whole: Any, places: Sequence[int]) -> None:
        given = {name: getattr(whole, name) for name in _OF_WORKERS if hasattr(whole, name)}
        super().__init__(**given)
        self._whole, self._chosen = whole, places

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, place: int) -> Any:
        return self._whole[self._chosen[place]]

    def take(self, count: int) -> Any:
        """Returns the first batches."""
        return _Chosen(self._whole, self._chosen[:count])


def _check_stays(data: Any) -> None:
    """Raises UnsupportedError for a PyDataset whose batches need not be the same ones in each epoch."""
    base = tf.keras.utils.Sequence
    for name in ("on_epoch_begin", "on_epoch_end"):
        if getattr(type(data), name, None) is not getattr(base, name, None):
            raise UnsupportedError(
                f"x: {type(data).__name__} has an {name}, which a rank that joins later has not called as often: pass "
                "a function that gives the data of an epoch: fit(lambda epoch: ...)"
            )


def _length_of(data: Any) -> int:
    if not isinstance(data, tf.keras.utils.Sequence):
        raise InvalidArgumentError(f"x: its function has to give a PyDataset each time, it gave {type(data).__name__}")
    count = data.num_batches if hasattr(type(data), "num_batches") else len(data)
    if count is None:
        raise UnsupportedError("x: with Elastic an epoch has an end: give the PyDataset a number of batches")
    return int(count)


class _Rows(_Datasets):
    """The elements are the rows of a dataset, which are put into batches here."""

    def __init__(self, of_epoch: Callable[[int], Any], global_batch: int) -> None:
        super().__init__(of_epoch)
        self._global_batch = global_batch

    def part(self, epoch: int, done: int, rank: int, size: int) -> Part:
        """See :class:`Source`."""
        rows = self._of_epoch(epoch)
        total = _checked_cardinality(rows)
        if gives_batches(rows):
            raise InvalidArgumentError(
                "x: with global_batch of Elastic its elements are rows, which become batches of the size that each "
                "rank has to take: leave out its batch(), or add unbatch() with assert_cardinality"
            )
        division = _division(total, done, 1, rank, size, self._global_batch)
        if division.pad:
            place = int(division.places()[0])
            return Part(rows.skip(place).take(1).batch(1), 1, division)
        step, whole, own, own_of_last = (
            division.step,
            division.whole,
            *map(division.own, (division.step, division.last)),
        )

        def is_own(number: Any, _row: Any) -> Any:
            place, last = number % step, number // step >= whole
            begin, end = tf.where(last, own_of_last.start, own.start), tf.where(last, own_of_last.stop, own.stop)
            return tf.logical_and(place >= tf.cast(begin, tf.int64), place < tf.cast(end, tf.int64))

        left = rows.skip(done).take(step * whole + division.last).enumerate()
        mine = left.filter(is_own).map(lambda _number, row: row).batch(division.share)
        counted = mine.apply(tf.data.experimental.assert_cardinality(division.steps))
        return Part(counted.prefetch(tf.data.AUTOTUNE), division.steps, division)


def _division(total: int, done: int, batch: int, rank: int, size: int, global_batch: int = 0) -> Division:
    """Returns a division with at least one step, also where a grown world finds fewer elements than ranks."""
    check_share(global_batch, size)
    division = Division(total, done, batch, rank, size, global_batch=global_batch)
    if division.steps == 0 and done == 0:
        raise InvalidArgumentError(
            f"x: its {total} elements are not enough for {size} ranks; the elements of a dataset are its batches, "
            "with global_batch its rows"
        )
    return division if division.steps else replace(division, pad=True)


def _checked_cardinality(dataset: Any) -> int:
    """Returns the number of elements of a dataset that always gives the same ones in the same order on all ranks."""
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidArgumentError(f"x: its function has to give a tf.data.Dataset, it gave {type(dataset).__name__}")
    total = int(dataset.cardinality())
    _check_order(dataset, "x")
    if total == tf.data.INFINITE_CARDINALITY:
        raise UnsupportedError("x: with Elastic an epoch has an end: leave out repeat(), or use take(n)")
    if total == tf.data.UNKNOWN_CARDINALITY:
        raise UnsupportedError(
            "x: how many elements it has is not known: say it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(n))"
        )
    return total


def _check_order(dataset: Any, name: str) -> None:
    """Raises InvalidArgumentError for a dataset that need not have all elements in the same order on all ranks."""
    chance = left_to_chance(dataset)
    if chance is None and reshuffles(dataset):
        chance = "a shuffle with reshuffle_each_iteration, whose order depends on how often a process has begun it"
    if chance is not None:
        advice = f"Pass a function that gives the data of an epoch, in one order: {_FUNCTION}"
        raise InvalidArgumentError(
            f"{name}: its elements come in another order on each rank ({chance}), so they cannot be divided. "
            f"{advice if name == 'x' else 'Leave the shuffle out: a validation does not depend on the order'}"
        )
    if is_shard(dataset):
        raise InvalidArgumentError(
            f"{name}: it is one rank's part already (Dataset.shard); Elastic divides it by itself: pass all of the data"
        )
