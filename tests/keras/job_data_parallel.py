"""Programs that know nothing of several ranks: each gives the numbers of one process.

Arguments: a file, into which one process writes its numbers, and which several ranks read; names of programs, or none.
"""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

keras = tf.keras
layers = keras.layers
KERAS_3 = hasattr(keras, "distribution")
ROWS = np.random.default_rng(1)
X = ROWS.normal(size=(53, 6)).astype(np.float32)
Y = (X[:, :1] ** 2 + X[:, 1:2]).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)
WEIGHTS = ROWS.uniform(0.1, 2, size=53).astype(np.float32)
IMAGES = ROWS.normal(size=(30, 8, 8, 3)).astype(np.float32)
TEXT = ROWS.integers(0, 20, size=(41, 7))
TEXT[:, 5:] *= ROWS.integers(0, 2, size=(41, 2))
Numbers = dict[str, Any]
programs: dict[str, Callable[[], Numbers]] = {}


def program(make: Callable[[], Numbers]) -> Callable[[], Numbers]:
    programs[make.__name__] = make
    return make


def program_of_keras_3(make: Callable[[], Numbers]) -> Callable[[], Numbers]:
    return program(make) if KERAS_3 else make


def program_of_keras_2(make: Callable[[], Numbers]) -> Callable[[], Numbers]:
    return make if KERAS_3 else program(make)


def dense(*last: Any, **compiled: Any) -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), *(last or (layers.Dense(1),))])
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **compiled})
    return model


def numbers(model: Any, history: Any = None, **more: Any) -> Numbers:
    weights = [np.asarray(one) for one in model.get_weights()]
    return {"weights": weights, "history": {} if history is None else history.history, **more}


def fit(model: Any, x: Any = X, y: Any = Y, **arguments: Any) -> Numbers:
    given = {"batch_size": 12, "epochs": 2, "verbose": 0, **arguments}
    if y is None:
        given.pop("batch_size")
    return numbers(model, model.fit(x, y, **given))


@program
def arrays_that_are_shuffled() -> Numbers:
    return fit(dense(metrics=["mae"]))


@program
def batches_smaller_than_the_world() -> Numbers:
    return fit(dense(metrics=["mae"]), X[:25], Y[:25])


@program_of_keras_3
def steps_that_xla_compiles() -> Numbers:
    compiles = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 21)  # XLA of others cannot communicate
    model = dense(optimizer="adam", metrics=["mae"], jit_compile=compiles)
    found = fit(model, X[:25], Y[:25], sample_weight=WEIGHTS[:25], validation_data=(X[25:], Y[25:]))
    assert model.jit_compile == compiles
    return found


@program
def one_row_at_a_time() -> Numbers:
    return fit(dense(optimizer="adam"), X[:5], Y[:5], batch_size=1)


@program
def validation_split_and_early_stopping() -> Numbers:
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True, min_delta=0.05)
    slower = keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=1.0)
    return fit(dense(metrics=["mse"]), validation_split=0.3, epochs=6, callbacks=[stop, slower])


class Running(keras.metrics.Metric):
    """Depends on the order of the batches."""

    def __init__(self, name: str = "running", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.running = self.add_weight(name="running", initializer="zeros")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = tf.reduce_mean(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred), -1)
        errors = errors if sample_weight is None else errors * tf.reshape(sample_weight, tf.shape(errors))
        self.running.assign(0.7 * self.running + 0.3 * tf.reduce_mean(errors))
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(errors)))

    def result(self) -> Any:
        return self.running + 10 * self.largest


@program
def metrics_that_are_no_sums() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(5)
    model = dense(
        metrics=["mae", Running(), keras.metrics.CosineSimilarity(axis=0)], weighted_metrics=[Running("weighted")]
    )
    trained = fit(model, sample_weight=WEIGHTS, validation_data=data, validation_steps=4)
    tested = [model.evaluate(X[:rows], Y[:rows], batch_size=4, verbose=0) for rows in (53, 3, 21)]
    single = model.test_on_batch(X, Y)
    model.compile(loss="mse", metrics=[Running()], steps_per_execution=3)
    tested += [model.evaluate(data, verbose=0), model.evaluate(data, steps=8, verbose=0)]
    return {**trained, "tested": tested, "single": single}


@program
def sample_and_class_weights() -> Numbers:
    first = fit(dense(weighted_metrics=["mse"], metrics=["mae"]), sample_weight=WEIGHTS)
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return {"first": first, **fit(model, X, LABELS, class_weight={0: 1.0, 1: 2.0, 2: 0.5})}


@program
def losses_that_are_sums() -> Numbers:
    return fit(dense(loss=keras.losses.MeanSquaredError(reduction="sum"), optimizer=keras.optimizers.SGD(1e-3)))


@program_of_keras_3  # with Keras 2 it is refused
def losses_of_rows() -> Numbers:
    return fit(dense(loss=keras.losses.MeanSquaredError(reduction="none"), optimizer=keras.optimizers.SGD(1e-3)))


@program_of_keras_3  # Keras 2 has no such reduction
def a_mean_over_the_weights() -> Numbers:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return fit(dense(loss=loss), sample_weight=WEIGHTS)


@program
def masked_tokens() -> Numbers:
    model = keras.Sequential(
        [
            keras.Input((7,)),
            layers.Embedding(20, 4, mask_zero=True),
            layers.LSTM(5, return_sequences=True),
            layers.Dense(20, "softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return fit(model, TEXT, TEXT)


@program
def words() -> Numbers:
    texts = np.array(["a b c", "b c d e", "c", "a a a", "e f"] * 6)[:, np.newaxis]
    table = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
    table.adapt(texts)
    last = [layers.Embedding(10, 4), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,), dtype="string"), table, *last])
    model.compile("adam", "mse")
    history = model.fit(tf.constant(texts), Y[:30], batch_size=8, epochs=2, verbose=0).history
    return {"history": history, "predicted": model.predict(tf.constant(texts), verbose=0)}


def embeddings(optimizer: Any) -> Numbers:
    """Tokens come several times in a batch, places once."""
    tokens, places = layers.Embedding(20, 4), layers.Embedding(7, 4)
    inputs = keras.Input((7,), dtype="int64")
    hidden = tokens(inputs) + places(tf.range(7))
    hidden = layers.GlobalAveragePooling1D()(layers.Activation("tanh")(hidden))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(hidden))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return fit(model, TEXT, LABELS[:41], batch_size=10)


@program
def embeddings_with_moments() -> Numbers:
    kinds = keras.optimizers
    makes = [kinds.Adam, kinds.Adagrad, kinds.RMSprop, kinds.Adamax, kinds.Ftrl, kinds.Lion]
    return {make.__name__: embeddings(make(0.01, global_clipnorm=0.05)) for make in makes}


@program
def batch_normalization() -> Numbers:
    inputs = keras.Input((8, 8, 3))
    hidden = layers.BatchNormalization(momentum=0.5)(layers.Conv2D(4, 3, strides=2)(inputs))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.ReLU()(hidden)))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return fit(model, IMAGES, LABELS[:30], validation_data=(IMAGES[:9], LABELS[:9]), batch_size=7)


@program
def regularizers_and_constraints() -> Numbers:
    layer = layers.Dense(
        4, kernel_regularizer="l2", activity_regularizer="l1", kernel_constraint=keras.constraints.MaxNorm(1.0)
    )
    return fit(dense(layer, layers.Dense(1), metrics=["mae"]))


class AddedLoss(layers.Layer):
    def call(self, inputs: Any) -> Any:
        if KERAS_3:  # Keras 2 takes numbers for the whole batch only
            self.add_loss(0.1 * tf.reduce_sum(inputs**2, axis=-1))  # of each row: Keras adds them up
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


@program
def losses_that_layers_add() -> Numbers:
    return fit(dense(AddedLoss(), layers.Dense(1), optimizer=keras.optimizers.SGD(0.01)))


@program
def several_outputs() -> Numbers:
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "relu")(inputs)
    model = keras.Model(inputs, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(3, name="b")(hidden)})
    cross = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = {"a": ["mae"], "b": ["accuracy"]}
    model.compile("adam", {"a": "mse", "b": cross}, loss_weights={"a": 0.3, "b": 1.0}, metrics=metrics)
    return fit(model, X, {"a": Y, "b": LABELS}, sample_weight={"a": WEIGHTS, "b": WEIGHTS[::-1].copy()})


def metrics() -> list[Any]:
    kinds = keras.metrics
    return ["accuracy", kinds.AUC(), kinds.AUC(curve="PR"), kinds.Precision(), kinds.Recall(), kinds.MeanSquaredError()]


@program
def metrics_that_count() -> Numbers:
    model = dense(layers.Dense(1, "sigmoid"), loss="binary_crossentropy", metrics=metrics())
    labels = (LABELS > 0).astype(np.float32)[:, np.newaxis]
    return fit(model, X, labels, validation_data=(X[:31], labels[:31]), validation_batch_size=4)


@program
def a_dataset() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(53).batch(12).prefetch(2)
    return fit(dense(), data, None, validation_data=data.take(2))


@program
def a_dataset_whose_rows_are_computed() -> Numbers:
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (2 * x, y), num_parallel_calls=2)
    data = rows.shuffle(53).batch(8).prefetch(2)
    history = dense().fit(data.skip(2), validation_data=data.take(2), epochs=2, verbose=0).history
    return fit(dense(), data, None, validation_data=data, validation_steps=3) | {"before": history}


@program
def steps_of_validation() -> Numbers:
    """Each validation goes on where the one before has ended."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    unknown = data.filter(lambda x, y: True)
    histories = [
        dense(steps_per_execution=together)
        .fit(X, Y, epochs=5, verbose=0, validation_data=one, validation_steps=3)
        .history
        for one in (data, unknown, data.repeat())
        for together in (1, 2)
    ]
    return {"histories": histories}


@program
def a_dataset_without_an_end() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(10)
    return fit(dense(), data, None, steps_per_epoch=7, validation_data=data, validation_steps=5)


@program
def a_dataset_of_dictionaries() -> Numbers:
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((1,), name="b")}
    joined = layers.Concatenate()([inputs["a"], inputs["b"]])
    model = keras.Model(inputs, layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    return fit(model, tf.data.Dataset.from_tensor_slices(({"a": X, "b": Y}, Y, WEIGHTS)).batch(11), None)


class Named(NamedTuple):
    x: Any
    y: Any


class Rows(keras.utils.Sequence):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[index * 11 : index * 11 + 11], Y[index * 11 : index * 11 + 11]


@program
def a_sequence() -> Numbers:
    return fit(dense(), Rows(), None)


@program
def a_generator() -> Numbers:
    def rows() -> Any:
        while True:
            for first in range(0, 53, 9):
                yield X[first : first + 9], Y[first : first + 9]

    return fit(dense(), rows(), None, steps_per_epoch=4)


@program
def several_steps_in_one_call() -> Numbers:
    return fit(dense(metrics=["mae"], steps_per_execution=4), validation_data=(X, Y))


@program
def eagerly() -> Numbers:
    return fit(dense(metrics=["mae"], run_eagerly=True), X[:25], Y[:25], epochs=1)


@program_of_keras_3  # Keras 2 has no such argument
def accumulated_gradients() -> Numbers:
    return fit(dense(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)))


@program
def clipped_with_averages_and_a_schedule() -> Numbers:
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    return fit(dense(optimizer=keras.optimizers.AdamW(rate, global_clipnorm=0.1, use_ema=True)))


@program
def loss_scaling() -> Numbers:
    room = keras.optimizers if KERAS_3 else keras.mixed_precision
    scaler = room.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    return fit(dense(optimizer=scaler))


class Scaled(keras.Model):
    """Scales the loss by itself."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        optimizer, variables = self.optimizer, self.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.cast(self(x, training=True), tf.float32) - y) ** 2)
            scaled = optimizer.scale_loss(loss) if KERAS_3 else optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, variables)
        gradients = gradients if KERAS_3 else optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class Scales(keras.callbacks.Callback):
    """Notes the loss scale after each step: it shows which ones were skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        self.scales.append(float(optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale))


def in_half(kind: Any, rows: int, *hidden: Any, **options: Any) -> Numbers:
    inputs = keras.Input((6,))
    values = layers.Dense(32, "relu")(inputs)
    for layer in (*hidden, layers.Dense(32, "relu"), layers.Dense(1, dtype="float32")):
        values = layer(values)
    model, scales = kind(inputs, values), Scales()
    model.compile(keras.optimizers.Adam(0.01, **options), "mse")
    factor = 30 if KERAS_3 else 1  # with Keras 2, sums over rows overflow on fewer steps
    found = fit(model, X[:rows], factor * Y[:rows], shuffle=False, callbacks=[scales])
    return {"scales": scales.scales, "history": found["history"]["loss"], "weights": found["weights"]}


@program
def mixed_precision() -> Numbers:
    accumulated = {"gradient_accumulation_steps": 2} if KERAS_3 else {}
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        found = {
            "plain": in_half(keras.Model, 53),
            "no rows": in_half(keras.Model, 25, **accumulated),
            "own": in_half(Scaled, 25, layers.BatchNormalization()),
        }
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return tf.nest.map_structure(np.float16, found)


class OwnStep(keras.Model):
    """Counts a loss in a Mean, as Keras's guides do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = layers.Dense(8, "tanh"), layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean((predicted - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.tracker.update_state(loss)
        self.error.update_state(y, predicted)
        return {"loss": self.tracker.result(), "mae": self.error.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.error]


@program
def a_training_step_of_its_own() -> Numbers:
    model = OwnStep()
    model.compile("sgd", "mse")
    return fit(model, X[:26], Y[:26])


class GuidesStep(keras.Model):
    """Returns the metrics of ``compile`` as one, as a guide of Keras 3 does."""

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@program_of_keras_3
def a_training_step_of_a_guide() -> Numbers:
    inputs = keras.Input((6,))
    model = GuidesStep(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"])
    single = [model.train_on_batch(X, Y), model.train_on_batch(X, Y, return_dict=True)]
    return {"single": single, **fit(model, X[:25], Y[:25])}


@program_of_keras_3
def weights_in_several_files() -> Numbers:
    model = dense()
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        path = str(Path(folder, "model.weights.json"))
        trained = fit(model)
        model.save_weights(path, max_shard_size=2.5e-7)
        again = dense()
        again.load_weights(path)
    return {**trained, "loaded": numbers(again)}


@program
def rows_with_names() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices(Named(X, Y)).batch(7)
    return fit(dense(), data, None, validation_data=data)


@program
def batch_normalization_in_a_step_of_its_own() -> Numbers:
    model = OwnStep()
    model.first = keras.Sequential([layers.Dense(8), layers.BatchNormalization(momentum=0.5), layers.ReLU()])
    model.compile("sgd", "mse")
    return fit(model, X[:37], Y[:37])


class RawLogs(OwnStep):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"raw": loss}

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"raw": self.compute_loss(x, y, self(x, training=False))}


@program
def numbers_of_the_last_step() -> Numbers:
    model = RawLogs()
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.MeanSquaredError(reduction="sum"))
    return fit(model, X[:50], Y[:50], validation_data=(X, Y))


class Counting(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.running = keras.metrics.Mean(name="size"), Running("course")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(tf.abs(inputs))
        self.running.update_state(tf.zeros_like(inputs), inputs)
        return inputs


@program
def metrics_in_a_layer_of_no_rows() -> Numbers:
    return fit(dense(Counting(), layers.Dense(1)), X[:26], Y[:26])


class Judging(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        kinds = keras.metrics
        judging = [kinds.AUC(), kinds.Precision(), kinds.BinaryAccuracy(), kinds.FalsePositives()]
        self.judging = [*judging, kinds.MeanIoU(2), kinds.RootMeanSquaredError(), kinds.SpecificityAtSensitivity(0.5)]
        self.sum = kinds.Sum(name="sum")

    def call(self, inputs: Any) -> Any:
        values = tf.clip_by_value(inputs, 0.0, 1.0)
        labels = tf.round(tf.abs(tf.sin(9 * values)))
        for metric in self.judging:
            metric.update_state(labels, tf.round(values) if isinstance(metric, keras.metrics.MeanIoU) else values)
        self.sum.update_state(inputs)
        return inputs


@program
def more_metrics_in_a_layer_of_no_rows() -> Numbers:
    return fit(dense(Judging(), layers.Dense(1)), X[:25], Y[:25], validation_data=(X, Y))


class Words(keras.Model):
    """Calls layers with vocabularies of other sizes one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.many, self.few = layers.Embedding(1000, 4), layers.Embedding(20, 4)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.few(data["few"]) + self.many(data["all"]) - 1) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


@program
def vocabularies_of_layers_in_a_step() -> Numbers:
    model = Words()
    model.compile(keras.optimizers.SGD(0.1))
    return fit(model, tf.data.Dataset.from_tensor_slices({"all": TEXT[:25] + 900, "few": TEXT[:25]}).batch(12), None)


@program
def sparse_rows_beside_dense_ones() -> Numbers:
    sparse = tf.sparse.from_dense(np.where(X[:25] > 0.5, X[:25], 0))
    wide, deep = keras.Input((6,), sparse=True), keras.Input((6,))
    model = keras.Model([wide, deep], layers.Dense(1)(layers.Concatenate()([layers.Dense(4)(wide), deep])))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return fit(model, tf.data.Dataset.from_tensor_slices(((sparse, X[:25]), Y[:25])).batch(12), None)


class Gan(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.judge = keras.Sequential([keras.Input((6,)), layers.Dense(4, "relu"), layers.Dense(1)])
        self.judged, self.made = keras.metrics.Mean(name="judged"), keras.metrics.Mean(name="made")

    def compile(self, judges: Any, makes: Any, judged_by: Any) -> None:
        super().compile()
        self.judges, self.makes, self.judged_by = judges, makes, judged_by

    @property
    def metrics(self) -> list[Any]:
        return [self.judged, self.made]

    def train_step(self, real: Any) -> Any:
        noise = real[:, :2]
        both = tf.concat([self.maker(noise), real], 0)
        rows = tf.shape(real)[0]
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        with tf.GradientTape() as tape:
            judged = self.judged_by(labels, self.judge(both))
        weights = self.judge.trainable_weights
        self.judges.apply_gradients(zip(tape.gradient(judged, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.judged_by(tf.zeros((rows, 1)), self.judge(self.maker(noise)))
        weights = self.maker.trainable_weights
        self.makes.apply_gradients(zip(tape.gradient(made, weights), weights, strict=True))
        self.judged.update_state(judged)
        self.made.update_state(made)
        return {"judged": self.judged.result(), "made": self.made.result()}


@program
def two_optimizers() -> Numbers:
    model = Gan()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), loss)
    return numbers(model, model.fit(X[:26], batch_size=12, epochs=2, verbose=0))


class WarmsUp(keras.callbacks.Callback):
    """Trains on a batch before an epoch, whose metrics go on from there in Keras, and evaluates another model."""

    def __init__(self) -> None:
        super().__init__()
        self.other = dense()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.train_on_batch(X[:10], Y[:10])
        self.other.evaluate(X[:7], Y[:7], verbose=0)


@program
def a_batch_within_fit() -> Numbers:
    return fit(dense(metrics=["mae"]), X[:25], Y[:25], callbacks=[WarmsUp()])


@program
def single_batches() -> Numbers:
    model = dense(metrics=["mae"])
    rows = [model.train_on_batch(X[: 3 * n + 1], Y[: 3 * n + 1], return_dict=True) for n in range(4)]
    return numbers(model, rows=rows, tested=model.test_on_batch(X, Y), predicted=model.predict_on_batch(X))


@program
def single_batches_between_epochs() -> Numbers:
    model = dense(metrics=["mae"])
    between = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.train_on_batch(X[:7], Y[:7]))
    return fit(model, callbacks=[between])


@program
def a_training_step_of_the_object() -> Numbers:
    model = dense()
    step = model.train_step
    model.train_step = lambda data: step((data[0], 2 * data[1]))
    first = fit(model)
    model.compile("sgd", "mse")
    return {"first": first, **fit(model), "raw": raw_numbers_of_an_object()}


def raw_numbers_of_an_object() -> Numbers:
    model = dense()

    def step(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(data[0], training=True) - data[1]) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"raw": loss}

    model.train_step = step
    return fit(model, X[:25], Y[:25])


@program
def predictions_of_an_unknown_number_of_rows() -> Numbers:
    model = dense()
    data = tf.data.Dataset.from_tensor_slices(X).filter(lambda row: row[0] < 1).batch(9)
    return numbers(model, predicted=[model.predict(data, verbose=0) for _ in range(2)])


@program
def evaluation_and_prediction() -> Numbers:
    model = dense(metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)
    results = [model.evaluate(X, Y, batch_size=7, verbose=0), model.evaluate(data, verbose=0, return_dict=True)]
    results += [model.evaluate(X[:1], Y[:1], verbose=0), model.evaluate(data, steps=2, verbose=0)]
    predicted = [model.predict(X, batch_size=7, verbose=0), model.predict(data.map(lambda x, y: x), verbose=0)]
    return numbers(model, results=results, predicted=predicted, few=model.predict(X[:1], verbose=0))


@program
def a_model_that_a_prediction_builds() -> Numbers:
    model = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])
    predicted = model.predict(X[:3], verbose=0)
    kernel = np.asarray(model.layers[1].kernel)
    model.compile("sgd", "mse", metrics=["mae"])
    return {**fit(model), "predicted": predicted, "kernel": kernel}


@program
def evaluation_of_a_script_that_divides_by_hand() -> Numbers:
    model = dense(metrics=["mae"])
    if tfk.size() == 1:
        return numbers(model, tested=model.evaluate(X, Y, verbose=0), rows=model.predict(X, batch_size=9, verbose=0))
    if KERAS_3:
        keras.distribution.set_distribution(None)
    return numbers(
        model, tested=tfk.evaluate(model, X, Y, verbose=0), rows=tfk.predict(model, X, batch_size=9, verbose=0)
    )


@program
def predictions_that_are_gathered() -> Numbers:
    model = dense()
    model.predict_on_batch(X[:1])
    if tfk.size() == 1:
        rows = model.predict(X, batch_size=9, verbose=0)
        return numbers(model, filed=rows, first=rows, own=rows, few=rows[:3])
    first = tfk.predict(model, X, batch_size=9, verbose=0, gather="rank0", memory=100)
    assert (first is None) == (tfk.rank() > 0)
    mine = tfk.predict(model, X, batch_size=9, verbose=0, gather="none", memory=30)
    assert isinstance(mine, np.memmap)
    assert len(mine) < 40
    parts = [np.split(rows, range(9, len(rows), 9)) for rows in tfk.allgather_object(np.asarray(mine))]
    own = [rank[turn] for turn in range(6) for rank in parts if turn < len(rank)]
    filed = tfk.predict(model, X, batch_size=9, verbose=0, memory=0)
    assert isinstance(filed, np.memmap)
    few = tfk.predict(model, X[:3], batch_size=9, verbose=0, gather="none")
    first = tfk.broadcast_object(first, root_rank=0)
    return numbers(model, filed=filed, first=first, own=np.concatenate(own), few=few if len(few) else filed[:3])


@program
def rows_of_several_outputs() -> Numbers:
    inputs = keras.Input((6,))
    outputs = [layers.Dense(2)(inputs), {"a": layers.Dense(1)(inputs)}]
    model = keras.Model(
        inputs,
        outputs,
    )
    model.compile(steps_per_execution=3)
    return numbers(model, predicted=model.predict(X, batch_size=5, verbose=0))


@program
def fit_twice_with_frozen_layers() -> Numbers:
    model = dense()
    first = fit(model)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return {"first": first, **fit(model)}


@program
def a_session_that_is_cleared() -> Numbers:
    return {str(rate): fit(dense(optimizer=keras.optimizers.SGD(rate))) for rate in cleared([0.1, 0.01])}


def cleared(rates: list[float]) -> Any:
    for rate in rates:
        keras.backend.clear_session()
        yield rate


@program
def files_of_the_model() -> Numbers:
    model = dense(metrics=["mae"])
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        best = str(Path(folder, "best.weights.h5"))
        keep = keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True, save_weights_only=True)
        trained = fit(model, callbacks=[keep, keras.callbacks.CSVLogger(str(Path(folder, "log.csv")))])
        model.load_weights(best)
        model.save(str(Path(folder, "model.keras")))
        again = keras.models.load_model(str(Path(folder, "model.keras")))
    return {**trained, "loaded": numbers(again), "then": fit(again, epochs=1)}


@program_of_keras_2
def files_of_tensorflow() -> Numbers:
    model = dense(metrics=["mae"])
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        trained = fit(model, callbacks=[keras.callbacks.TensorBoard(str(Path(folder, "events")))])
        model.save_weights(str(Path(folder, "weights")))
        model.save(str(Path(folder, "model")))
        again = keras.models.load_model(str(Path(folder, "model")))
        later = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])  # has no weights yet
        later.load_weights(str(Path(folder, "weights")))
        rows = later.predict(X, verbose=0)
    return {**trained, "then": fit(again, epochs=1), "later": rows}


@program_of_keras_2
def optimizers_of_before() -> Numbers:
    legacy = keras.optimizers.legacy
    scaler = keras.mixed_precision.LossScaleOptimizer(legacy.Adam(0.01))
    return {
        **fit(dense(optimizer=legacy.SGD(0.1, momentum=0.9, nesterov=True))),
        "scaled": fit(dense(optimizer=scaler)),
    }


@program_of_keras_2
def losses_and_metrics_of_tensors() -> Numbers:
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh")(inputs)
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.add_loss(0.1 * tf.reduce_mean(hidden**2))
    model.add_metric(tf.reduce_mean(hidden), name="mean")
    model.add_metric(hidden, name="rows", aggregation="mean")
    model.compile("sgd", "mse")
    return fit(model, validation_data=(X, Y))


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise InterruptedError


@program
def a_restored_backup() -> Numbers:
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        backup = keras.callbacks.BackupAndRestore(folder)
        try:
            fit(dense(optimizer="adam"), epochs=4, shuffle=False, callbacks=[backup, Interrupt()])
        except InterruptedError:
            return fit(dense(optimizer="adam"), epochs=4, shuffle=False, callbacks=[backup])
    raise AssertionError("it has not been interrupted")


@program_of_keras_3  # Keras 2 cannot compile a copy by its configuration
def copies_of_a_model() -> Numbers:
    model = dense(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))
    first = fit(model)
    cloned = keras.models.clone_model(model)
    cloned.compile_from_config(model.get_compile_config())
    cloned.set_weights(model.get_weights())
    copied = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), cloned]
    plain = dense()
    second = fit(plain)
    copied.append(dense(optimizer=pickle.loads(pickle.dumps(plain.optimizer))))
    return {"first": first, "second": second, "copies": [fit(one) for one in copied]}


def root_mean_square(y_true: Any, y_pred: Any) -> Any:
    return tf.sqrt(tf.reduce_mean((tf.cast(y_true, y_pred.dtype) - y_pred) ** 2))


def distances(y_true: Any, y_pred: Any) -> Any:
    """Compares rows with each other."""
    theirs, own = y_true - tf.transpose(y_true), y_pred[:, :1] - tf.transpose(y_pred[:, :1])
    return tf.reduce_sum(tf.abs(theirs - own)) / 100


@program
def one_number_of_a_batch() -> Numbers:
    metrics = [root_mean_square, "mae"]
    return {
        "root": fit(dense(loss=root_mean_square, metrics=metrics), validation_data=(X, Y)),
        "pairs": fit(dense(loss=distances, metrics=[distances])),
        "eagerly": fit(dense(loss=distances, run_eagerly=True), epochs=1),
        "small": fit(dense(loss=root_mean_square, metrics=metrics), X[:7], Y[:7], batch_size=3),
    }


def overlaps(y_true: Any, y_pred: Any) -> Any:
    """One number for each of the three classes."""
    return 1 - 2 * tf.reduce_sum(y_true * y_pred, [0, 1, 2]) / tf.reduce_sum(y_true + y_pred, [0, 1, 2])


def segmented(rows: int, loss: Any = overlaps, **options: Any) -> Numbers:
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(3, 3, padding="same", activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[overlaps])
    masks = (IMAGES > 0.5).astype(np.float32)
    return fit(model, tf.data.Dataset.from_tensor_slices((IMAGES, masks)).batch(rows, **options), None)


@program
def one_number_of_a_class() -> Numbers:
    along = keras.losses.CosineSimilarity(axis=0)
    model = dense(loss=along, metrics=[keras.metrics.CosineSimilarity(axis=0)])
    found = {str(rows): segmented(rows, drop_remainder=True) for rows in (8, 9)}
    if hasattr(keras.losses, "dice"):
        found["dice"] = segmented(7, keras.losses.Dice(axis=(0, 1, 2)))
        found["whole"] = fit(dense(metrics=[keras.losses.dice]), epochs=1)
    return {**found, "classes": segmented(7), "along": fit(model), "batch": model.train_on_batch(X[:2], Y[:2])}


class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and tfk.rank() == tfk.size() - 1:
            self.model.stop_training = True


@program
def stopping_in_the_middle() -> Numbers:
    model = dense()
    return numbers(model, model.fit(X, Y, batch_size=12, verbose=0, callbacks=[StopAt()]))


class StopTesting(keras.callbacks.Callback):
    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = batch == self.last


@program_of_keras_3  # Keras 2 has no stop_evaluating
def stopping_an_evaluation() -> Numbers:
    model = dense(metrics=["mae", Running()])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    unknown = data.filter(lambda x, y: True)
    tested = [
        model.evaluate(given, steps=steps, verbose=0, callbacks=[StopTesting(last)])
        for given, steps in ((data, None), (unknown, None), (data, 6), (unknown, 6))
        for last in (0, 4, 5, 7, 20)
    ]
    stop = [StopTesting(3)]
    return {**fit(model, validation_data=(X, Y), validation_batch_size=6, callbacks=stop), "tested": tested}


def differences(mine: Any, theirs: Any, place: str = "") -> list[str]:
    if isinstance(theirs, dict):
        found = [] if isinstance(mine, dict) and mine.keys() == theirs.keys() else [f"{place}: {mine} and {theirs}"]
        return found or [line for name in theirs for line in differences(mine[name], theirs[name], f"{place}/{name}")]
    if isinstance(theirs, list | tuple):
        found = [] if len(mine) == len(theirs) else [f"{place}: {len(mine)} and {len(theirs)}"]
        return found or [line for n, one in enumerate(theirs) for line in differences(mine[n], one, f"{place}/{n}")]
    left, right = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    near = (4e-3, 2e-3) if np.asarray(theirs).dtype == np.float16 else (2e-4, 2e-6)
    if left.shape != right.shape or not np.allclose(left, right, *near, equal_nan=True):
        worst = float(np.max(np.abs(left - right))) if left.shape == right.shape else f"{left.shape}, {right.shape}"
        return [f"{place}: differs by {worst}"]
    return []


def run(make: Callable[[], Numbers]) -> Numbers:
    keras.backend.clear_session()
    if KERAS_3 and tfk.size() > 1:  # of Keras 2 it is --data-parallel
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    keras.utils.set_random_seed(7)
    return make()


def compared(name: str, one: Numbers) -> bool:
    lines = differences(run(programs[name]), one)
    for rank, theirs in enumerate(tfk.allgather_object(lines)):
        if tfk.rank() == 0:
            print(f"{'ok' if not theirs else 'differs'} {name} on rank {rank} {theirs[:4]}", flush=True)
    return not lines


def main() -> None:
    place, wanted = Path(sys.argv[1]), sys.argv[2:] or list(programs)
    tfk.init()
    if tfk.size() == 1:
        place.write_bytes(pickle.dumps({name: run(programs[name]) for name in wanted}))
        sys.exit()
    ones = pickle.loads(place.read_bytes())
    alike = [compared(name, ones[name]) for name in wanted]
    sys.exit(not all(alike))


if __name__ == "__main__":
    main()
