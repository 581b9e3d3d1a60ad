"""What samples of rows say about the division of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective.keras._parallel.division import Division
from tfcollective.keras._row_sample import NO_SAMPLE, ROWS, RowSample, hashes
from tfcollective.keras._shared_rows import of_batches, of_own_data

pytestmark = pytest.mark.tensorflow
RANDOM = np.random.default_rng(0)
HASHES = RANDOM.integers(0, 1 << 60, 5000)


def sample_of(rows: Any, batches: Sequence[int] = ()) -> Any:
    sample = NO_SAMPLE.copy()
    kept = np.sort(rows)[::-1][:ROWS]
    sample[: kept.size] = kept
    sample[ROWS : ROWS + len(batches)] = batches
    return sample


def excesses(*rows: Any) -> list[tuple[int, int]]:
    return [one.ranks for one in of_own_data([sample_of(one) for one in rows])]


def test_equal_rows_are_found_in_any_order() -> None:
    (found,) = of_own_data([sample_of(RANDOM.permutation(HASHES)) for _ in range(2)])
    assert found.ranks == (0, 1)
    assert found.rows == ROWS - 1  # the smallest one that is kept says where the sample ends
    assert found.found == found.excess == 1.0
    assert excesses(HASHES[:2500], HASHES[2500:], HASHES[:2450]) == [(0, 2)]
    assert excesses(HASHES, HASHES[::2]) == [(0, 1)]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_repeated_rows_are_no_mistake(ranks: int) -> None:
    for seed in range(50):
        order = np.random.default_rng(seed).permutation(np.concatenate([HASHES, HASHES[:1500], HASHES[:1500]]))
        parts = [sample_of(order[rank::ranks], [rank]) for rank in range(ranks)]
        assert of_own_data(parts) == of_batches(parts) == []
    assert len(of_own_data([sample_of(np.concatenate([HASHES, HASHES[:1500]]))] * ranks)) == ranks * (ranks - 1) / 2


def test_rows_that_are_equal_by_nature_say_nothing() -> None:
    assert excesses(*[HASHES[RANDOM.integers(0, 10, 400)] for _ in range(2)]) == []
    assert excesses(*[np.repeat(HASHES[:100], 3)] * 2) == []
    assert excesses(HASHES[:15], HASHES[:15]) == []
    assert excesses([], []) == []


@pytest.mark.parametrize("ranks", [2, 3, 8, 40])
def test_other_orders_of_batches_are_found(ranks: int) -> None:
    parts = [RANDOM.permutation(HASHES)[: HASHES.size // ranks] for _ in range(ranks)]
    assert of_batches([sample_of(rows, [1, rank]) for rank, rows in enumerate(parts)])
    assert of_batches([sample_of(rows, [1, 2]) for rows in parts]) == []
    assert of_own_data([sample_of(rows) for rows in parts]) == []


def test_hashes_depend_on_content_alone() -> None:
    rows = RANDOM.normal(size=(40, 9, 30)).astype(np.float32)
    labels = np.arange(40)
    first = hashes((tf.constant(rows), {"label": tf.constant(labels)})).numpy()
    order = RANDOM.permutation(40)
    second = hashes((tf.constant(rows[order]), {"label": tf.constant(labels[order])})).numpy()
    np.testing.assert_array_equal(first[order], second)
    assert len(set(first)) == 40
    assert first.min() >= 0
    assert (hashes((tf.constant(rows), tf.constant(labels + 1))).numpy() != first).all()


def test_padding_to_another_length_does_not_count() -> None:
    unknown = tf.function(hashes, input_signature=[(tf.TensorSpec([None, None], tf.int32),)])
    short = RANDOM.integers(1, 9, size=(4, 6)).astype(np.int32)
    for width in (6, 7, 64):
        padded = np.pad(short, [(0, 0), (0, width - 6)])
        np.testing.assert_array_equal(unknown((tf.constant(padded),)), unknown((tf.constant(short),)))


@pytest.mark.parametrize("dtype", [tf.bool, tf.string, tf.bfloat16, tf.complex128, tf.uint8])
def test_hashes_of_each_type(dtype: Any) -> None:
    values = tf.constant([["a"], ["b"]]) if dtype == tf.string else tf.cast(tf.constant([[0], [1]]), dtype)
    first, second = hashes((values, tf.ragged.constant([[1], []]), None)).numpy()
    assert first != second


def test_parts_without_rows_or_of_another_length() -> None:
    assert hashes((tf.zeros([0, 3]), tf.zeros([0]))).shape == (0,)
    assert hashes((tf.zeros([3, 0]), tf.zeros([5]), tf.zeros([2]))).shape == (3,)


def read(sample: RowSample, dataset: Any, batches: int | None, division: Division | None = None) -> Any:
    watched = sample.watch(dataset, division)
    assert watched.element_spec == dataset.element_spec
    sample.begin(batches)
    for mine, theirs in zip(watched, dataset, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)
    return sample.end()


def test_a_sample_is_that_of_the_first_batches() -> None:
    rows = RANDOM.normal(size=(100, 3)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"x": rows}).batch(8)
    sample = RowSample()
    whole, part = read(sample, dataset, None), read(sample, dataset, 5)
    every = np.sort(hashes({"x": tf.constant(rows)}).numpy())[::-1]
    np.testing.assert_array_equal(whole[:100], every)
    assert (whole[100:ROWS] == -1).all()
    assert (part[:ROWS] >= 0).sum() == 40
    assert (whole[ROWS:] >= 0).sum() == 13
    np.testing.assert_array_equal(whole[ROWS + 8 : ROWS + 13], part[ROWS : ROWS + 5])
    assert (part[ROWS + 5 :] == -1).all()
    assert "float32 2-d" in str(sample.elements)


def test_a_rank_of_several_samples_its_slice() -> None:
    rows = RANDOM.normal(size=(41, 3)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(8)
    samples = [read(RowSample(), dataset, None, Division(rank, 3)) for rank in range(3)]
    kept = [set(sample[:ROWS][sample[:ROWS] >= 0]) for sample in samples]
    assert [len(one) for one in kept] == [16, 15, 10]
    assert len(set.union(*kept)) == 41
    assert of_batches(samples) == []


def test_more_batches_than_are_compared() -> None:
    dataset = tf.data.Dataset.range(500).batch(4)
    sample = read(RowSample(), dataset, None)
    assert (sample >= 0).all()
    np.testing.assert_array_equal(sample, read(RowSample(), dataset, None))
