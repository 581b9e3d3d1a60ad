"""A run that is interrupted continues with the data that an undisturbed one reads next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective.keras._data_place import DataPlace

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
X = np.random.default_rng(3).normal(size=(24, 3)).astype(np.float32)
Y = np.tanh(X.sum(1, keepdims=True))
ROWS = tf.data.Dataset.from_tensor_slices((X, Y))


class InterruptedFit(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """Ends ``fit`` after a batch; notes the batches that it sees."""

    def __init__(self, epoch: int = -1, batch: int = -1) -> None:
        super().__init__()
        self.place, self.epoch, self.batches = (epoch, batch), 0, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert np.isfinite(logs["loss"])
        self.batches.append(batch)
        if (self.epoch, batch) == self.place:
            raise InterruptedFit


def train(data: Any, *callbacks: Any, **options: Any) -> list[Any]:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.set_weights([np.ones((3, 1), np.float32), np.zeros(1, np.float32)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(data, epochs=3, verbose=0, callbacks=list(callbacks), **options)
    return list(model.get_weights())


def noisy(x: Any, y: Any) -> Any:
    return x + tf.random.uniform([], seed=4), y


PIPELINES: dict[str, Callable[[], Any]] = {
    "in order": lambda: ROWS.batch(4),
    "shuffled in each epoch": lambda: ROWS.shuffle(9, seed=2).batch(4).prefetch(2),
    "computed after a shuffle": lambda: ROWS.shuffle(9, seed=2).map(lambda x, y: (2 * x, y)).batch(4),
    "read ahead to the end": lambda: ROWS.shuffle(9, seed=2).batch(4).prefetch(9),
    "cached": lambda: ROWS.map(lambda x, y: (2 * x, y)).cache().shuffle(9, seed=2).batch(4).prefetch(2),
    "repeated twice": lambda: ROWS.take(12).shuffle(9, seed=2).repeat(2).batch(4).prefetch(9),
    "repeated": lambda: ROWS.shuffle(9, seed=2).repeat().batch(5),
    "with random numbers": lambda: ROWS.shuffle(9, seed=2).map(noisy).batch(4),
    "of a generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(zip(X, Y, strict=True)),
        output_signature=(tf.TensorSpec([3], tf.float32), tf.TensorSpec([1], tf.float32)),
    ).batch(4),
}


@pytest.mark.parametrize("place", [(1, 4), (2, 0)])
@pytest.mark.parametrize("name", PIPELINES)
def test_an_interrupted_run_ends_alike(tmp_path: Path, name: str, place: tuple[int, int]) -> None:
    options = {"steps_per_epoch": 6} if name == "repeated" else {}
    with fake_world(size=1):
        tf.random.set_seed(1)
        expected = train(PIPELINES[name](), **options)
        with pytest.raises(InterruptedFit):
            train(PIPELINES[name](), tfk.BackupAndRestore(tmp_path, 2), Interrupt(*place), **options)
        backup, seen = tfk.BackupAndRestore(tmp_path, 2), Interrupt()
        resumed = train(PIPELINES[name](), backup, seen, **options)
    assert backup.resumed_from == ((1, 4) if place == (1, 4) else (2, 0))
    assert seen.batches == ([*range(6)] * 2 if place == (1, 4) else [*range(6)])
    for got, wanted in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert not list(tmp_path.iterdir())


def test_rows_that_are_done_are_not_computed(tmp_path: Path) -> None:
    def new(row: Any, x: Any, y: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_greater(row, tf.constant(7, tf.int64))]):
            return tf.identity(x), y

    numbered = tf.data.Dataset.zip((tf.data.Dataset.range(24), *map(tf.data.Dataset.from_tensor_slices, (X, Y))))
    with fake_world(size=1):
        with pytest.raises(InterruptedFit):
            interrupted = numbered.map(lambda row, x, y: (x, y)).batch(4)
            train(interrupted, tfk.BackupAndRestore(tmp_path, 2), Interrupt(0, 2))
        backup = tfk.BackupAndRestore(tmp_path)
        with pytest.raises(InterruptedFit):
            train(numbered.map(new).batch(4), backup, Interrupt(0, 5))
    assert backup.resumed_from == (0, 2)


def test_finite_data_of_several_epochs(tmp_path: Path) -> None:
    """Keras counts the batches of such data from the start of ``fit``, so none may be missing in a later epoch."""
    seen = Interrupt()
    with fake_world(size=1):
        with pytest.raises(InterruptedFit):
            backup = tfk.BackupAndRestore(tmp_path, 2)
            train(ROWS.batch(4).repeat(2), backup, Interrupt(1, 2), steps_per_epoch=4)
        train(ROWS.batch(4).repeat(2), tfk.BackupAndRestore(tmp_path), seen, steps_per_epoch=4)
    assert seen.batches == [*range(4)] * 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ROWS.map(noisy), "a function of MapDataset draws random numbers"),
        (PIPELINES["of a generator"](), "a function of FlatMapDataset"),
        (PIPELINES["repeated twice"](), "a repeat that ends"),
        (tf.data.Dataset.from_tensors(tf.random.uniform([1 << 25])).repeat().shuffle(2), "MiB, as of a shuffle"),
        (iter(()), "tuple_iterator has no state"),
    ],
)
def test_the_reason_why_there_is_no_state(data: Any, reason: str) -> None:
    iterator, place = iter(data), DataPlace()
    place.begin(iterator)
    if isinstance(data, tf.data.Dataset):
        next(iterator)
    saved = [place.save().now, place.save().now]
    assert all(isinstance(one, str) and reason in one for one in saved), saved


def test_a_state_of_other_data_is_not_used() -> None:
    place, other = DataPlace(), iter(tf.data.Dataset.range(9).map(lambda row: row + 1).batch(2).enumerate())
    place.begin(iter(tf.data.Dataset.range(9).shuffle(3)))
    assert DataPlace().resume(other, 2, place.save()) == "the state in the backup is of other data"
    assert int(next(other)[0]) == 2
