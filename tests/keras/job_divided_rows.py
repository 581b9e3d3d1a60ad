"""Data that ranks have divided, or have not: what ``fit`` says at the end of its first epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk
from tfcollective.keras import _together as together

tfk.init()
rank, size = tfk.rank(), tfk.size()
keras = tf.keras
GIVEN = np.random.default_rng(1)  # all ranks have the same data
OWN = np.random.default_rng(100 + rank)
X = GIVEN.normal(size=(240, 5)).astype(np.float32)
MIXED = GIVEN.permutation(np.concatenate([X, X[:100]]))  # 30 % are repeated
IMAGES = GIVEN.integers(0, 255, size=(96, 8, 8, 3)).astype(np.uint8)
NAMES = np.array([f"row {number}" for number in range(120)])
KERAS_3 = hasattr(keras, "distribution")
lines: list[str] = []


class Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines.append(record.getMessage())


logging.getLogger("tfcollective").addHandler(Lines())


def fit(x: Any, **options: Any) -> None:
    """Trains on rows in any form, whose targets are zeros."""
    shape = x[0].shape if isinstance(x, np.ndarray) else x.element_spec[0].shape[1:]
    layers = [keras.layers.Flatten()] if len(shape) > 1 else []
    model = keras.Sequential([keras.layers.Input(shape), *layers, keras.layers.Dense(1, kernel_initializer="zeros")])
    optimizer = keras.optimizers.SGD(0.0)
    model.compile(optimizer if divided() else tfk.DistributedOptimizer(optimizer), "mse")
    if isinstance(x, np.ndarray):
        options = {"y": np.zeros(len(x), np.float32), "batch_size": 16, **options}
    model.fit(x, verbose=0, **{"epochs": 2, **options})


def divided() -> bool:
    return KERAS_3 and keras.distribution.distribution() is not None


def dataset(rows: Any) -> Any:
    """Made of a generator, into which nobody sees."""

    def generate() -> Any:
        yield from ((row, np.float32(0)) for row in rows)

    signature = (tf.TensorSpec(rows[0].shape, rows.dtype), tf.TensorSpec((), tf.float32))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


class Rows(keras.utils.PyDataset if KERAS_3 else keras.utils.Sequence):  # type: ignore[misc]
    def __init__(self, rows: Any) -> None:
        if KERAS_3:
            super().__init__()
        self.rows = rows
        self.element_spec = (tf.TensorSpec((None, *rows[0].shape)),)

    def __len__(self) -> int:
        return (len(self.rows) + 15) // 16

    def __getitem__(self, index: int) -> Any:
        rows = self.rows[index * 16 : index * 16 + 16]
        return rows, np.zeros(len(rows), np.float32)


def forgotten_in_arrays() -> None:
    fit(OWN.permutation(X))


def forgotten_in_a_shuffled_dataset() -> None:
    fit(dataset(X).shuffle(240).batch(16))


def forgotten_with_steps_of_an_endless_dataset() -> None:
    fit(dataset(X).shuffle(240).repeat().batch(16), steps_per_epoch=15)


def forgotten_in_a_sequence() -> None:
    fit(Rows(OWN.permutation(X)))


def forgotten_in_images() -> None:
    fit(dataset(IMAGES).shuffle(96).batch(16, drop_remainder=True).map(lambda x, y: (tf.cast(x, tf.float32), y)))


def forgotten_where_rows_are_repeated() -> None:
    fit(OWN.permutation(MIXED))


def forgotten_in_dictionaries_of_words() -> None:
    def features(x: Any, y: Any) -> Any:
        return tf.strings.to_hash_bucket_fast(x, 100)[:, tf.newaxis], y, tf.strings.length(x)

    fit(dataset(NAMES).shuffle(120).batch(8).map(features))


def silent_where_sharded() -> None:
    fit(tfk.shard(dataset(X)).shuffle(240).batch(16))


def silent_where_arrays_are_cut() -> None:
    fit(X[rank::size])


def silent_where_rows_are_repeated() -> None:
    fit(MIXED[rank::size])


def silent_where_rows_are_equal_by_nature() -> None:
    fit(np.eye(5, dtype=np.float32)[OWN.integers(0, 5, 120)])
    fit(np.zeros((120, 5), np.float32) + np.float32(rank == 0))  # not seen before the first step


def silent_where_an_epoch_is_longer_than_the_data() -> None:
    fit(dataset(X[rank::size][:40]).repeat().batch(16), steps_per_epoch=9)


def silent_where_each_rank_draws_its_part_of_an_epoch() -> None:
    fit(dataset(X).repeat().shuffle(240).batch(12), steps_per_epoch=20 // size)


def silent_where_few_rows_are_known() -> None:
    fit(dataset(X[:8]).shuffle(8).batch(4))


def silent_in_the_mode() -> None:
    fit(X)
    fit(dataset(MIXED).shuffle(340, seed=1).batch(16))
    fit(dataset(MIXED).map(lambda x, y: (x + 1, y)).shuffle(340).batch(16))
    fit(Rows(X))


def silent_in_the_mode_where_slices_repeat() -> None:
    fit(dataset(X[:60]).repeat(2).batch(8 * size))  # the second pass is cut elsewhere


def silent_in_the_mode_where_rows_are_augmented() -> None:
    noise = tf.random.Generator.from_seed(rank)
    fit(dataset(X).batch(16).map(lambda x, y: (x + noise.normal(tf.shape(x)), y)))


def orders_of_their_own() -> None:
    fit(dataset(OWN.permutation(X)).batch(16))


def orders_of_their_own_in_repeated_rows() -> None:
    fit(Rows(OWN.permutation(MIXED)))


def forgotten_where_the_mode_leaves_data_alone() -> None:
    fit(dataset(OWN.permutation(X)).batch(16))


def orders_of_their_own_before_a_map() -> None:
    fit(dataset(OWN.permutation(X)).map(lambda x, y: (x + 1, y)).batch(16))


def forgotten_where_the_options_say_so() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    fit(dataset(OWN.permutation(X)).batch(16).with_options(options))


def orders_of_their_own_in_arrays() -> None:
    keras.utils.set_random_seed(rank)
    fit(X)
    keras.utils.set_random_seed(0)


def other_data_of_arrays() -> None:
    fit(X[rank::size])


def expect(case: Callable[[], None], text: str | None) -> None:
    """Runs a case; rank 0 says one line with this text, or nothing."""
    together._said.clear()
    lines.clear()
    case()
    said = [line for line in lines if line.startswith("fit:")]
    if text is None or rank != 0:
        assert said == [], (case.__name__, said)
    else:
        assert len(said) == 1, (case.__name__, said)
        assert text in said[0], (case.__name__, said)
        assert "TFCOLLECTIVE_FIT_CHECKS=0" in said[0]
    print(f"ok {case.__name__}", flush=True)


ALL = f"ranks {', '.join(map(str, range(size)))} have trained on the same rows: of a sample of "
CASES: list[tuple[Callable[[], None], str | None]] = [
    (case, ALL if name.startswith("forgotten") else None)
    for name, case in list(globals().items())
    if name.startswith(("forgotten_in", "forgotten_with", "forgotten_where_rows", "silent_where"))
]
for case, text in CASES:
    expect(case, text)
if KERAS_3:
    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    expect(forgotten_where_the_mode_leaves_data_alone, ALL)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    for case in (
        silent_in_the_mode,
        silent_in_the_mode_where_slices_repeat,
        silent_in_the_mode_where_rows_are_augmented,
    ):
        expect(case, None)
    expect(orders_of_their_own, "different orders, so that their slices of a batch overlap: of a sample of ")
    expect(orders_of_their_own_in_arrays, "different orders")
    expect(orders_of_their_own_before_a_map, "different orders")
    expect(forgotten_where_the_options_say_so, ALL)
    expect(orders_of_their_own_in_repeated_rows, "different orders")
    expect(other_data_of_arrays, "ranks have different data")
