"""The same number of elements for every rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective.tensorflow._dataset_order import left_to_chance


def shard(dataset: Any, even: bool = True) -> Any:
    """Returns this rank's shard of a ``tf.data.Dataset``: of each `size` elements in a row, the one at place `rank`.

    Shard before shuffling and batching, with the dataset in the same order on all ranks: ``Dataset.list_files`` and
    ``shuffle`` need a `seed` for that. In an evaluator, which is outside the world and works alone, it is the whole
    dataset.

    Args:
        dataset: the whole dataset; all ranks must pass the same.
        even: every rank gets the same number of elements: up to size - 1 elements at the end are dropped. Without
            it ranks may run out of data at different times, and those that still train then fail with an error.

    Returns:
        A dataset of the same element type.

    Raises:
        InvalidArgumentError: no dataset, known to have fewer elements than there are ranks, or an order that is another
            one on each rank.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidArgumentError(
            f"dataset: expected a tf.data.Dataset, got {type(dataset).__name__}: "
            "tf.data.Dataset.from_tensor_slices makes one of arrays"
        )
    size = runtime.size()
    if size == 1 or not runtime.task().is_trainer:
        return dataset
    chance = left_to_chance(dataset)
    if chance is not None:
        raise InvalidArgumentError(
            f"dataset: its elements come in another order on each rank ({chance}): the ranks' parts would overlap and "
            "miss some. Use shard() before shuffle(), and Dataset.list_files(..., shuffle=False); or give shuffle() "
            "and list_files(), or tf.random.set_seed(), the same seed on all ranks, and deterministic=True"
        )
    rank = runtime.rank()
    if not even:
        return dataset.shard(size, rank)
    # In a graph of tf.compat.v1, such as an Estimator's, it is known only when the graph runs.
    known = tf.get_static_value(dataset.cardinality())
    cardinality = tf.data.UNKNOWN_CARDINALITY if known is None else int(known)
    if cardinality == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return _whole_rounds(dataset, size, rank)
    if cardinality < size:
        raise InvalidArgumentError(f"dataset: its {cardinality} elements are not enough for {size} ranks")
    return dataset.take(cardinality - cardinality % size).shard(size, rank)


def _whole_rounds(dataset: Any, size: int, rank: int) -> Any:
    """Returns one element of each complete round of `size`; elements may differ in shape, so they are not batched."""
    rounds = dataset.map(lambda *element: (element,)).window(size, drop_remainder=True)

    def pick(window: Any) -> Any:
        own = tf.nest.map_structure(lambda part: part.skip(rank).take(1), window)
        return tf.data.Dataset.zip(own)

    picked = rounds.flat_map(pick)
    return picked.map(lambda *element: element[0] if len(element) == 1 else element)
