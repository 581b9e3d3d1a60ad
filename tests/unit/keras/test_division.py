"""How batches are divided over the ranks, and what a rank's part of a batch counts for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._metric_sums import merge
from tfcollective.keras._parallel.division import Division, rows_of
from tfcollective.keras._parallel.results import prepare_metrics
from tfcollective.keras._parallel.rows import Part
from tfcollective.keras._parallel.step import Step, divided_step, rounded, weigh, weigh_loss

pytestmark = pytest.mark.tensorflow
KERAS_2 = not hasattr(tf.keras, "distribution")
ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)


def parts(batch: Any, size: int) -> list[Part]:
    return [Division(rank, size).part_of(batch) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 10, 13])
def test_slices_are_the_whole_batch(size: int) -> None:
    found = parts((tf.constant(ROWS), tf.constant(ROWS[:, 0])), size)
    np.testing.assert_array_equal(np.concatenate([part.batch[0] for part in found]), ROWS)
    np.testing.assert_array_equal(np.concatenate([part.batch[1] for part in found]), ROWS[:, 0])
    counts = [len(part.batch[0]) for part in found]
    assert sorted(counts, reverse=True) == counts
    assert counts[0] - counts[-1] <= 1
    assert {int(part.total) for part in found} == {10}


@pytest.mark.parametrize("size", [2, 3, 12])
def test_ragged_and_sparse_rows_are_divided(size: int) -> None:
    ragged = tf.ragged.range(tf.range(10))
    sparse = tf.sparse.from_dense(ROWS)
    found = parts({"ragged": ragged, "sparse": sparse, "rate": tf.constant(0.5), "none": None}, size)
    assert tf.concat([part.batch["ragged"] for part in found], 0).to_list() == ragged.to_list()
    joined = tf.sparse.concat(0, [part.batch["sparse"] for part in found])
    np.testing.assert_array_equal(tf.sparse.to_dense(joined), ROWS)
    assert all(part.batch["none"] is None and float(part.batch["rate"]) == 0.5 for part in found)


@pytest.mark.parametrize("rows", [4, 5])
def test_a_dataset_of_unknown_batches(rows: int) -> None:
    data = tf.data.Dataset.from_tensor_slices(ROWS).batch(rows)
    mine = [list(Division(rank, 3).parts_of(data)) for rank in range(3)]
    for whole, *own in zip(data, *mine, strict=True):
        np.testing.assert_array_equal(np.concatenate([part.batch for part in own]), whole)
        assert sum(int(rows_of(part.batch)) for part in own) == int(own[0].total)


def test_ranks_take_turns_in_groups() -> None:
    data = tf.data.Dataset.range(11).batch(2)
    mine = [[int(batch[0]) for batch in Division(rank, 2).whole_batches_of(data, 2)] for rank in range(2)]
    assert mine == [[0, 2, 8, 10], [4, 6]]


@pytest.mark.parametrize("rows", [1, 2])
def test_evaluated_batches_are_left_out(rows: int) -> None:
    data = tf.data.Dataset.range(10 * rows).batch(rows).map(lambda batch: batch // rows)
    divisions = [Division(rank, 2, evaluated=(0, 3, 4)) for rank in range(2)]
    found = [[int(batch[0]) for batch in division.whole_batches_of(data)] for division in divisions]
    assert found == [[1, 5, 7, 9], [2, 6, 8]]
    assert [division.places(3) for division in divisions] == [[1, 5, 7], [2, 6, 8]]
    pairs = [[int(batch[0]) for batch in division.whole_batches_of(data, 2)] for division in divisions]
    assert pairs == [[2, 3], [4, 5]]  # of turns 1 and 2


def test_whole_batches_are_taken_in_turn() -> None:
    data = tf.data.Dataset.range(20).batch(3)
    found = [list(Division(rank, 3).whole_batches_of(data)) for rank in range(3)]
    assert [len(one) for one in found] == [3, 2, 2]
    assert [one.numpy().tolist() for one in found[1]] == [[3, 4, 5], [12, 13, 14]]
    assert len(list(Division(2, 3).whole_batches_of(data.take(4)))) == 1


def test_a_dataset_gets_one_order() -> None:
    options = tf.data.Options()
    options.deterministic = False
    data = tf.data.Dataset.range(20).batch(4).with_options(options)
    assert Division(0, 2).parts_of(data).options().deterministic
    assert Division(0, 2).whole_batches_of(data).options().deterministic
    assert not Division(0, 2, shards_data=False).parts_of(data).options().deterministic


@pytest.mark.parametrize("step", ["map", "interleave"])
def test_steps_without_an_order_are_refused(step: str) -> None:
    apply = {"map": abs, "interleave": lambda row: tf.data.Dataset.from_tensors(row)}[step]
    numbers = tf.data.Dataset.range(20)
    data = getattr(numbers, step)(apply, num_parallel_calls=2, deterministic=False).batch(4).prefetch(1)
    ordered = getattr(numbers, step)(apply, num_parallel_calls=2).batch(4)
    assert len(list(Division(0, 2).parts_of(ordered))) == 5
    for division in (Division(0, 2).parts_of, Division(0, 2).whole_batches_of):
        with pytest.raises(UnsupportedError, match="deterministic=False"):
            division(data)
    assert len(list(Division(0, 2, shards_data=False).parts_of(data))) == 5


def test_ranks_write_no_common_cache(tmp_path: Path) -> None:
    data = tf.data.Dataset.range(20).cache(str(tmp_path / "cache")).batch(4)
    for divide in (Division(0, 2).parts_of, Division(0, 2).whole_batches_of):
        with pytest.raises(UnsupportedError, match="cache\\(filename\\)"):
            divide(data)
    list(data)
    assert [len(list(divide(data))) for divide in (Division(0, 2).parts_of, Division(0, 2).whole_batches_of)] == [5, 3]


def test_data_of_each_rank_stay_whole() -> None:
    division = Division(1, 3, shards_data=False)
    part = division.part_of(tf.constant(ROWS))
    assert (int(part.total), len(part.batch)) == (30, 10)
    data = tf.data.Dataset.range(20).batch(3)
    assert len(list(division.whole_batches_of(data))) == 7


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (tf.constant(1.0), "without rows"),
        ((tf.constant(ROWS), tf.constant(ROWS[:3])), "10 rows, and one of its parts 3"),
    ],
)
def test_batches_that_cannot_be_divided(batch: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Division(0, 2).part_of(batch)


def test_parts_of_other_lengths_are_an_error() -> None:
    data = tf.data.Dataset.from_generator(
        lambda: iter([(ROWS, ROWS[:3])]), output_signature=(tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2]))
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
        list(Division(0, 2).parts_of(data))


def test_gradients_count_by_rows() -> None:
    def weighed(_batch: Any) -> Any:
        return weigh([tf.constant(1.0), None], "optimizer")

    step = divided_step(weighed, Division(0, 3), tf.Variable(0.0), of_keras=False)
    assert float(step(tf.constant(ROWS))[0]) == pytest.approx(4 / 10)
    assert weigh([1.0], "optimizer") == [1.0]  # outside of a step


def test_a_loss_that_counts_by_rows() -> None:
    one, other = object(), object()

    def weighed(_batch: Any) -> Any:
        loss = weigh_loss(tf.constant(1.0), [one])
        return loss, weigh([loss], one)[0], weigh([loss], other)[0], weigh([loss], one)[0]

    step = divided_step(weighed, Division(0, 3), None, of_keras=True)
    assert [float(value) for value in step(tf.constant(ROWS))] == pytest.approx([0.4, 0.4, 0.16, 0.16])


def test_nothing_computed_of_no_rows_counts() -> None:
    step = Step(tf.constant(0, tf.int64), tf.constant(2, tf.int64))
    assert float(step.shared(tf.constant(np.nan))) == 0.0
    assert float(step.summed(tf.constant(0.0))) == 0.0
    assert not step.has_some


def test_a_sum_too_large_for_half_precision() -> None:
    @tf.function
    def summed(half: Any) -> Any:
        mine = tf.cast(half, tf.float32)
        return rounded([2 * mine, 2 * mine, None], [mine, tf.identity(mine), None])[:2]

    assert [float(one) for one in summed(tf.constant(4e4, tf.float16))] == [np.inf, 8e4]


class Most(tf.keras.metrics.Metric):
    """Accepts no more than its name: Keras's ``get_config`` returns a dtype as well."""

    def __init__(self, name: str = "most") -> None:
        super().__init__(name=name)
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, *_: Any) -> None: ...

    def merge_state(self, metrics: Any) -> None:
        self.most.assign(max(float(one.most) for one in metrics))

    def result(self) -> Any:
        return self.most


def test_a_metric_of_few_arguments_is_merged() -> None:
    metric = Most("best")
    assert not prepare_metrics([metric])
    merge(metric, [[np.float32(1.0)], [np.float32(3.0)]])
    assert float(metric.result()) == 3.0


def test_a_metric_that_hides_arguments() -> None:
    class Hidden(Most):
        def __init__(self, limit: float) -> None:
            super().__init__(f"above {limit}")

    with pytest.raises(UnsupportedError, match=r"metric above 3: .* Hidden cannot be made again from its get_config"):
        prepare_metrics([Hidden(3)])


@pytest.mark.skipif(KERAS_2, reason="Keras 2 has no keras.distribution")
def test_what_keras_is_told_of_the_world() -> None:
    distribution = tf.keras.distribution
    with fake_world(3):
        assert len(distribution.list_devices("cpu")) == 3
        parallel = distribution.DataParallel()
        assert parallel.num_processes == 3
        assert parallel.distribute_dataset(None) is None
        with pytest.raises(UnsupportedError, match="ModelParallel: on TensorFlow"):
            distribution.ModelParallel(layout_map=None)
        mesh = distribution.DeviceMesh((3, 1), ("batch", "model"), distribution.list_devices("cpu"))
        with pytest.raises(UnsupportedError, match="DataParallel: a mesh of shape"):
            distribution.DataParallel(device_mesh=mesh)
