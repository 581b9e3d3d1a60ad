"""Metrics over all ranks are those that one process has for all of the data."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective import _runtime as runtime
from tfcollective.keras._metric_sums import ADDITIVE, is_additive
from tfcollective.keras._parallel import mode

pytestmark = pytest.mark.tensorflow
keras = tf.keras
METRICS = keras.metrics
PARTS = (slice(0, 5), slice(5, 16))  # of 16 rows: the ranks have unequally many
RANDOM = np.random.default_rng(0)
SCORES = RANDOM.uniform(0.05, 0.95, (16, 3)).astype(np.float32)
LABELS = RANDOM.integers(0, 3, 16)
ONE_HOT = np.eye(3, dtype=np.float32)[LABELS]
ALL_CLASSES = sorted({kind for _, kind in inspect.getmembers(METRICS, inspect.isclass)}, key=lambda kind: kind.__name__)
WITH_ARGUMENTS: dict[str, dict[str, Any]] = {
    "BinaryIoU": {"target_class_ids": [0, 1]},
    "IoU": {"num_classes": 3, "target_class_ids": [0, 1]},
    "MeanIoU": {"num_classes": 3},
    "MeanRelativeError": {"normalizer": [1.0, 2.0, 3.0]},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.3},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
}
BY_CLASS_NUMBER = ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy", "SparseTopKCategoricalAccuracy")
NO_LABELS = ("Mean", "MeanMetricWrapper", "MeanTensor", "Metric", "Sum")  # not for compile


class TwoRanks:
    """Stands for the communicator: what the other rank has sent is added to what this one sends."""

    def __init__(self, sent: list[Any] | None = None) -> None:
        self.sent: list[Any] = []
        self._others = None if sent is None else iter(sent)

    def __getattr__(self, name: str) -> Any:
        return getattr(runtime.get_communicator(), name)

    def allreduce(self, array: Any, **_options: Any) -> Any:
        self.sent.append(np.array(array))
        return array + (array if self._others is None else next(self._others))

    def allgather(self, array: Any, **_options: Any) -> Any:
        self.sent.append(np.array(array))
        return np.concatenate([array, array if self._others is None else next(self._others)])


def on_both(run: Callable[[slice], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `run`, which is given the rows of a rank, returns on both ranks. It talks of metrics only."""
    results = []
    with fake_world():
        for mine, other in (PARTS, PARTS[::-1]):
            recorded = TwoRanks()
            for part, ranks in ((other, recorded), (mine, TwoRanks(recorded.sent))):
                with monkeypatch.context() as patched:
                    patched.setattr(runtime, "get_communicator", lambda _set=None, ranks=ranks: ranks)
                    result = run(part)
            results.append(result)
    return results


def evaluated(metrics: list[Any], rows: slice, labels: Any, *callbacks: Any) -> dict[str, Any]:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Activation("linear")])
    made.compile(loss=lambda _, predicted: tf.reduce_mean(predicted, -1), metrics=metrics)
    found = made.evaluate(SCORES[rows], labels[rows], 4, verbose=0, return_dict=True, callbacks=list(callbacks))
    return {name: np.asarray(value).tolist() for name, value in found.items()}


@pytest.mark.parametrize("labels", [LABELS, ONE_HOT], ids=["class numbers", "one-hot"])
def test_every_metric_of_keras(labels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [kind for kind in ALL_CLASSES if kind.__name__ not in NO_LABELS]
    fitting = [kind for kind in kinds if (kind.__name__ in BY_CLASS_NUMBER) == (labels.ndim == 1)]

    def metrics() -> list[Any]:
        return [kind(**WITH_ARGUMENTS.get(kind.__name__, {}), name=kind.__name__) for kind in fitting]

    def on_a_rank(rows: slice) -> Any:
        return evaluated(metrics(), rows, labels, tfk.MetricAverageCallback())

    whole = evaluated(metrics(), slice(0, 16), labels)
    assert len(whole) == len(fitting) + 1
    for found in on_both(on_a_rank, monkeypatch):
        for key, value in whole.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5, err_msg=key)


def test_the_table_has_all_of_them() -> None:
    for kind in ALL_CLASSES:
        owner = next(one for one in kind.__mro__ if "update_state" in vars(one))
        assert (owner.__name__ in ADDITIVE) == (kind.__name__ not in ("MeanTensor", "Metric")), owner


class Largest(METRICS.Mean):
    """Adds nothing up, though its base does."""

    def update_state(self, values: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.total.assign(tf.maximum(tf.convert_to_tensor(self.total), tf.reduce_max(predicted)))
        self.count.assign(1.0)


class Merging(Largest):
    """Says how states become one."""

    def merge_state(self, metrics: Any) -> None:
        for one in metrics:
            self.total.assign(tf.maximum(tf.convert_to_tensor(self.total), tf.convert_to_tensor(one.total)))
        self.count.assign(1.0)


def test_a_custom_metric_merges_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def on_a_rank(rows: slice) -> Any:
        return evaluated([Merging(name="m"), "mse"], rows, ONE_HOT, tfk.MetricAverageCallback())

    with caplog.at_level(logging.WARNING, "tfcollective"):
        found = on_both(on_a_rank, monkeypatch)
    assert [one["m"] for one in found] == [pytest.approx(float(SCORES.max()))] * 2
    assert "MetricAverageCallback" not in caplog.text


def test_a_custom_metric_is_averaged_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_additive(Largest())
    callback = tfk.MetricAverageCallback()
    with caplog.at_level(logging.WARNING, "tfcollective"):
        found = on_both(lambda rows: evaluated([Largest(name="m")], rows, ONE_HOT, callback), monkeypatch)
    largest = [float(SCORES[part].max()) for part in PARTS]
    for one in found:
        assert one["m"] == pytest.approx((5 * largest[0] + 11 * largest[1]) / 16)
        assert one["loss"] == pytest.approx(SCORES.mean())
    (record,) = [record for record in caplog.records if "MetricAverageCallback" in record.message]
    assert "m (Largest): the mean of the ranks' values" in record.message
    assert "loss" not in record.message


def test_what_is_of_all_ranks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank has counted the same: a count that is added up is twice as large."""
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Activation("linear")])
    made.compile(loss="mse", metrics=[METRICS.TruePositives(name="count")])
    found = made.evaluate(SCORES, ONE_HOT, 4, verbose=0, return_dict=True)["count"]
    callback = tfk.MetricAverageCallback()
    callback.set_model(made)
    callback.on_train_begin()
    trained, divided = {"count": found, "val_count": found}, {"count": found}
    with fake_world():
        monkeypatch.setattr(runtime, "get_communicator", lambda _set=None: TwoRanks())
        with mode.divided():
            callback.on_test_begin()
        callback.on_epoch_end(0, trained)
        with mode.divided():
            callback.on_epoch_end(0, divided)
    assert trained == {"count": 2 * found, "val_count": found}
    assert divided == {"count": found}


def test_training_and_validation_in_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation counts with the same metrics as the training, and comes before the end of the epoch."""

    def fit(rows: slice, *callbacks: Any) -> dict[str, Any]:
        made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Activation("linear")])
        made.compile(keras.optimizers.SGD(0.0), "mse", metrics=[METRICS.AUC(name="auc")])
        part = (1 - SCORES[rows], ONE_HOT[rows])
        history = made.fit(SCORES[rows], ONE_HOT[rows], 4, 2, 0, list(callbacks), validation_data=part)
        return history.history

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            self.model.evaluate(SCORES[:3], ONE_HOT[:3], verbose=0)

    whole = fit(slice(0, 16))
    assert set(whole) == {"loss", "auc", "val_loss", "val_auc"}
    for found in on_both(lambda rows: fit(rows, tfk.MetricAverageCallback()), monkeypatch):
        for key, value in whole.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-5, err_msg=key)
    own = [fit(part)["val_auc"][0] for part in PARTS]
    for found in on_both(lambda rows: fit(rows, Evaluates(), tfk.MetricAverageCallback()), monkeypatch):
        np.testing.assert_allclose(found["auc"], whole["auc"], rtol=1e-5)  # kept before the validation
        np.testing.assert_allclose(found["val_auc"], sum(own) / 2, rtol=1e-5)  # not what Evaluates has counted
