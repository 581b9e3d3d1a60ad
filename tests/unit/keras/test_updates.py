"""Metrics whose states cannot be merged, on two ranks of which the other has the batches of this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfc
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._parallel import mode, updates

pytestmark = pytest.mark.tensorflow
ROWS = np.arange(8, dtype=np.float32)[:, np.newaxis]


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with fake_world(2):
        yield


class Running(tf.keras.metrics.Metric):
    """Depends on the order of the batches."""

    def __init__(self) -> None:
        super().__init__(name="running")
        self.running = self.add_weight(name="running", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del y_pred, sample_weight
        self.running.assign(self.running / 2 + tf.cast(tf.reduce_sum(y_true), tf.float32))

    def result(self) -> Any:
        return self.running


class SumOfBatches(Running):
    pass


class Merging(Running):
    def merge_state(self, metrics: Any) -> None:
        self.running.assign(max(float(one.running) for one in metrics))


def model_with(*metrics: Any, kind: Any = tf.keras.Model, **compiled: Any) -> Any:
    inputs = tf.keras.Input((1,))
    made = kind(inputs, tf.keras.layers.Dense(1)(inputs))
    made.compile(optimizer="sgd", loss="mse", metrics=list(metrics), **compiled)
    return made


def expected(*batches: Any) -> float:
    found = 0.0
    for batch in batches:
        found = found / 2 + float(batch.sum())
    return found


def evaluated(model: Any) -> float:
    found = tfc.evaluate(model, ROWS, ROWS, batch_size=2, verbose=0, return_dict=True)
    return float(found["running"])


@pytest.mark.parametrize("eagerly", [False, True])
def test_updates_are_made_in_order(eagerly: bool) -> None:
    model = model_with(Running(), run_eagerly=eagerly)
    alone = float(model.evaluate(ROWS, ROWS, batch_size=2, verbose=0, return_dict=True)["running"])
    assert alone == pytest.approx(expected(ROWS[:2], ROWS[2:4], ROWS[4:6], ROWS[6:]))
    for _ in range(2):
        assert evaluated(model) == pytest.approx(expected(ROWS[:2], ROWS[:2], ROWS[4:6], ROWS[4:6]))
    again = float(model.evaluate(ROWS, ROWS, batch_size=2, verbose=0, return_dict=True)["running"])
    assert again == pytest.approx(alone)


def test_an_evaluation_leaves_the_model_as_it_was() -> None:
    model = model_with(Running(), jit_compile=True)
    for _ in range(2):
        evaluated(model)
        assert "test_step" not in vars(model)
        assert model.jit_compile
        function = model.test_function
    evaluated(model)
    assert model.test_function is function


class Best(tf.keras.metrics.MeanAbsoluteError):
    def __init__(self) -> None:
        super().__init__(name="best")
        self.best = self.add_weight(name="best", initializer="zeros")

    def result(self) -> Any:
        self.best.assign(tf.maximum(self.best, super().result()))
        return tf.identity(self.best)


class Doubled(tf.keras.metrics.MeanAbsoluteError):
    def result(self) -> Any:
        return 2 * super().result()


def test_a_result_that_assigns_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"metric best: Best.result assigns variables"):
        evaluated(model_with(Best()))
    tfc.evaluate(model_with(Doubled()), ROWS, ROWS, batch_size=2, verbose=0)


def test_a_metric_that_merges_is_not_repeated() -> None:
    assert evaluated(model_with(Merging())) == pytest.approx(expected(ROWS[:2], ROWS[4:6]))


def test_a_metric_of_each_of_two_outputs() -> None:
    inputs = tf.keras.Input((1,))
    outputs = {"a": tf.keras.layers.Dense(1, name="a")(inputs), "b": tf.keras.layers.Dense(1, name="b")(inputs)}
    model = tf.keras.Model(inputs, outputs)
    model.compile(loss={"a": "mse", "b": "mse"}, metrics={"a": [SumOfBatches()], "b": [SumOfBatches()]})
    targets = {"a": ROWS, "b": 2 * ROWS}
    found = tfc.evaluate(model, ROWS, targets, batch_size=2, verbose=0, return_dict=True)
    one = expected(ROWS[:2], ROWS[:2], ROWS[4:6], ROWS[4:6])
    assert (found["a_running"], found["b_running"]) == (pytest.approx(one), pytest.approx(2 * one))


def test_more_rows_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MOST", 20)
    model = model_with(Running())
    with pytest.raises(UnsupportedError, match=r"metric running: Running has .* more than 0 MiB on a rank"):
        evaluated(model)
    monkeypatch.undo()
    assert evaluated(model) > 0


class Unseen(Running):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, y_pred, sample_weight)


class CountsInTheEnd(tf.keras.Model):
    """Updates a metric of which nothing is known before."""

    def test_step(self, data: Any) -> Any:
        logs = super().test_step(data)
        if not hasattr(self, "late"):
            with tf.init_scope():
                self.late = Unseen()
        self.late.update_state(data[1], data[1])
        return {**logs, "late": self.late.result()}


@pytest.mark.parametrize("metrics", [[], [Running]])
def test_a_metric_that_comes_late_is_refused(metrics: list[Any]) -> None:
    model = model_with(*(kind() for kind in metrics), kind=CountsInTheEnd, run_eagerly=True)
    with pytest.raises(UnsupportedError, match=r"metric running: Unseen has an update_state of its own, and tfcoll"):
        evaluated(model)


class Counts(tf.keras.Model):
    """Updates a metric of its own with what a test says."""

    given: Any = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.own = Running()

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self.own.update_state(self.given(), self.given())
        return logs

    def test_step(self, data: Any) -> Any:
        logs = super().test_step(data)
        self.own.update_state(self.given(), self.given())
        return logs


def test_numbers_of_a_batch_are_refused() -> None:
    model = model_with(kind=Counts, run_eagerly=True)
    model.given = lambda: tf.constant(1.0)
    with mode.divided(), pytest.raises(UnsupportedError, match=r"metric running: .* a number for the whole batch"):
        model.fit(ROWS, ROWS, verbose=0)


def test_ragged_rows_are_refused() -> None:
    model = model_with(kind=Counts, run_eagerly=True)
    model.given = lambda: tf.ragged.constant([[1.0], []])
    with pytest.raises(UnsupportedError, match="ragged and sparse rows are not gathered"):
        evaluated(model)
