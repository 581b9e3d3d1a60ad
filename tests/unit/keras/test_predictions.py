"""Predictions of all ranks, of which the others have the same as this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfc
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.tensorflow
ROWS = np.arange(24, dtype=np.float32).reshape(12, 2)


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with fake_world(2):
        yield


class Says(tf.keras.Model):
    """Says of a batch what a function does."""

    def __init__(self, says: Callable[[Any], Any]) -> None:
        super().__init__()
        self.says = says
        self.built = True

    def predict_step(self, data: Any) -> Any:
        return self.says(data)


def predicted(says: Callable[[Any], Any], rows: Any = ROWS, **options: Any) -> Any:
    data = tf.data.Dataset.from_tensor_slices(rows).batch(3)
    return tfc.predict(Says(says), data, verbose=0, **options)


@pytest.mark.parametrize("memory", [0, 40, 1000])
def test_batches_come_in_turn(memory: int) -> None:
    found = predicted(lambda rows: {"a": rows, "b": (rows[:1], rows[0, 0])}, memory=memory)
    batches = [ROWS[:3], ROWS[:3], ROWS[6:9], ROWS[6:9]]
    np.testing.assert_array_equal(found["a"], np.concatenate(batches))
    np.testing.assert_array_equal(found["b"][0], np.concatenate([batch[:1] for batch in batches]))
    np.testing.assert_array_equal(found["b"][1], [batch[0, 0] for batch in batches])
    assert isinstance(found["a"], np.memmap) == (memory < 1000)


def test_an_error_of_the_data_changes_no_model() -> None:
    model = Says(lambda rows: rows)
    broken = tf.data.Dataset.from_tensors([np.nan]).map(lambda row: tf.debugging.check_numerics(row, "broken"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
        tfc.predict(model, broken.batch(1), verbose=0)
    found = tfc.predict(model, ROWS[:3], verbose=0)
    np.testing.assert_array_equal(found, np.concatenate([ROWS[:3], ROWS[:3]]))


def test_strings_stay_in_memory() -> None:
    found = predicted(tf.strings.as_string, memory=0)
    assert found.shape == (12, 2)
    assert found[3:5, 0].tolist() == [b"0.000000", b"2.000000"]


def test_a_file_can_be_written_to() -> None:
    found = predicted(lambda rows: rows, gather="none", memory=0)
    found += 1
    np.testing.assert_array_equal(found, np.concatenate([ROWS[:3], ROWS[6:9]]) + 1)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (lambda rows: tf.RaggedTensor.from_tensor(rows), "ragged and sparse predictions"),
        (lambda rows: tf.sparse.from_dense(rows), "ragged and sparse predictions"),
        (lambda rows: tf.zeros((3, tf.cast(rows[0, 0], tf.int32) + 1)), "differ from batch to batch"),
    ],
)
def test_rows_that_do_not_fit_together(says: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        predicted(says)


@pytest.mark.skipif(not hasattr(tf.keras, "distribution"), reason="Keras 2 refuses data without rows")
def test_no_batches() -> None:
    assert predicted(lambda rows: rows, ROWS[:0]) is None


@pytest.mark.parametrize(("gather", "memory"), [("some", 0), ("all", -1)])
def test_arguments_that_are_refused(gather: Any, memory: int) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        predicted(lambda rows: rows, gather=gather, memory=memory)


class Looking(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(logs["outputs"])
        if not self.seen[1:]:  # as in Keras, whatever is wanted of the other
            assert len(self.model.predict(ROWS[:4], batch_size=2, verbose=0)) == 4


def test_callbacks_see_the_outputs() -> None:
    looking = Looking()
    predicted(lambda rows: rows, callbacks=[looking], gather="none")
    np.testing.assert_array_equal(np.concatenate(looking.seen), np.concatenate([ROWS[:3], ROWS[6:9]]))
