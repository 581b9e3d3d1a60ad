"""More programs that know nothing of several ranks, for a longer test: see job_data_parallel.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from job_data_parallel import (
    IMAGES,
    LABELS,
    TEXT,
    WEIGHTS,
    Numbers,
    Rows,
    X,
    Y,
    dense,
    fit,
    keras,
    layers,
    main,
    numbers,
    program,
    programs,
)

programs.clear()


@program
def weights_that_are_zero_for_a_rank() -> Numbers:
    weights = WEIGHTS * (np.arange(53) % 12 > 6)  # unshuffled, the first half of each batch has none
    mean = dense(weighted_metrics=["mae"], metrics=["mse"])
    return fit(mean, sample_weight=weights.astype(np.float32), shuffle=False)


@program
def weights_of_each_step_in_a_sequence() -> Numbers:
    model = keras.Sequential([keras.Input((7,)), layers.Embedding(20, 4), layers.GRU(5, return_sequences=True)])
    model.add(layers.Dense(20, "softmax"))
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return fit(model, TEXT, TEXT, sample_weight=(TEXT > 3).astype(np.float32))


@program
def sequences_of_which_some_steps_are_masked() -> Numbers:
    x = np.repeat(X[:, np.newaxis], 4, 1) * (np.arange(4) <= np.arange(53)[:, np.newaxis] % 4)[:, :, np.newaxis]
    model = keras.Sequential([keras.Input((4, 6)), layers.Masking(), layers.Bidirectional(layers.LSTM(3))])
    model.add(layers.Dense(1))
    model.compile("rmsprop", "mse")
    return fit(model, x.astype(np.float32), Y, validation_split=0.2)


@program
def attention_and_normalization_of_layers() -> Numbers:
    inputs = keras.Input((7,))
    tokens = layers.Embedding(20, 8)(inputs)
    attended = layers.LayerNormalization()(tokens + layers.MultiHeadAttention(2, 4)(tokens, tokens))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(attended)))
    model.compile(keras.optimizers.SGD(0.1), "huber")
    return fit(model, TEXT, Y[:41])


@program
def convolutions_of_several_kinds() -> Numbers:
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.SeparableConv2D(4, 3, activation="relu")])
    model.add(layers.DepthwiseConv2D(2, depth_multiplier=2))
    model.add(layers.AveragePooling2D(2))
    model.add(layers.GroupNormalization(2))
    model.add(layers.Conv2DTranspose(3, 2))
    model.add(layers.Flatten())
    model.add(layers.Dense(3, "softmax"))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), "sparse_categorical_crossentropy")
    return fit(model, IMAGES, LABELS[:30], batch_size=7)


def trained_by(**kinds: Any) -> Numbers:
    return {name: fit(dense(optimizer=optimizer)) for name, optimizer in kinds.items()}


@program
def optimizers_with_moments() -> Numbers:
    kinds = keras.optimizers
    return trained_by(
        nadam=kinds.Nadam(0.01),
        adamax=kinds.Adamax(0.01),
        amsgrad=kinds.Adam(0.01, amsgrad=True),
        lion=kinds.Lion(0.001),
    )


@program
def optimizers_with_sums_of_squares() -> Numbers:
    kinds = keras.optimizers
    return trained_by(
        adagrad=kinds.Adagrad(0.1),
        adadelta=kinds.Adadelta(1.0),
        centred=kinds.RMSprop(0.01, momentum=0.5, centered=True),
    )


@program
def optimizers_that_factor_or_shrink() -> Numbers:
    kinds = keras.optimizers
    return trained_by(ftrl=kinds.Ftrl(0.1, l1_regularization_strength=0.01), factored=kinds.Adafactor(0.01))


@program
def optimizers_that_scale_by_layers() -> Numbers:
    return trained_by(lamb=keras.optimizers.Lamb(0.01), muon=keras.optimizers.Muon(0.01))


@program
def gradients_that_are_clipped() -> Numbers:
    kinds = keras.optimizers
    return trained_by(
        norm=kinds.SGD(0.1, clipnorm=0.1), value=kinds.SGD(0.1, clipvalue=0.01), all=kinds.SGD(0.1, global_clipnorm=0.1)
    )


@program
def weights_that_decay_and_are_averaged() -> Numbers:
    return trained_by(
        decay=keras.optimizers.SGD(0.1, weight_decay=0.05),
        average=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    )


@program
def averages_that_are_swapped_in() -> Numbers:
    model = dense(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), metrics=["mae"])
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return fit(model, validation_data=(X[:20], Y[:20]), callbacks=[swap])


@program
def schedules_of_the_learning_rate() -> Numbers:
    rates = keras.optimizers.schedules
    cosine = rates.CosineDecay(0.0, 6, warmup_target=0.1, warmup_steps=3)
    return trained_by(
        cosine=keras.optimizers.SGD(cosine), steps=keras.optimizers.SGD(rates.PiecewiseConstantDecay([3], [0.1, 0.01]))
    )


class Slower(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.1 / (batch + 1))


@program
def callbacks_that_set_the_learning_rate() -> Numbers:
    by_epoch = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return {"batches": fit(dense(), callbacks=[Slower()]), **fit(dense(), epochs=3, callbacks=[by_epoch])}


class Evaluating(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found += [self.model.evaluate(X, Y, batch_size=8, verbose=0), self.model.predict(X[:9], verbose=0)]


@program
def evaluation_in_a_callback() -> Numbers:
    evaluating = Evaluating()
    trained = fit(dense(metrics=["mae"]), callbacks=[evaluating], validation_data=(X[:30], Y[:30]))
    return {**trained, "found": evaluating.found}


@program
def validation_of_some_epochs() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    model = dense(metrics=["mae"])
    return fit(model, epochs=6, initial_epoch=2, validation_data=data, validation_steps=3, validation_freq=2)


@program
def a_generator_with_an_end() -> Numbers:
    rows = ((X[first : first + 9], Y[first : first + 9], WEIGHTS[first : first + 9]) for first in range(0, 53, 9))
    return fit(dense(), rows, None, epochs=1)


@program
def a_sequence_with_workers() -> Numbers:
    data = Rows(workers=2)
    return fit(dense(), data, None, validation_data=Rows())


@program
def a_dataset_that_repeats_and_drops() -> Numbers:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(53, seed=3, reshuffle_each_iteration=False)
    return fit(dense(), data.batch(10, drop_remainder=True).repeat(2), None, validation_data=data.batch(53))


@program
def rows_that_are_sparse() -> Numbers:
    sparse = tf.sparse.from_dense(np.where(X > 0.5, X, 0))
    inputs = keras.Input((6,), sparse=True)
    model = keras.Model(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)))
    model.compile("sgd", "mse")
    return fit(model, tf.data.Dataset.from_tensor_slices((sparse, Y)).batch(11), None)


@program
def words_and_numbers_in_the_model() -> Numbers:
    words = np.array(["red", "green", "blue", "none"])[TEXT[:, :2] % 4]
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="multi_hot")
    normalize = layers.Normalization()
    normalize.adapt(X[:41])
    inputs = {"words": keras.Input((2,), dtype="string", name="words"), "x": keras.Input((6,), name="x")}
    joined = layers.Concatenate()([lookup(inputs["words"]), normalize(inputs["x"])])
    model = keras.Model(inputs, layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(({"words": words, "x": X[:41]}, Y[:41])).batch(9)
    return fit(model, data, None)


@program
def models_within_a_model() -> Numbers:
    shared = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.BatchNormalization(momentum=0.5)])
    left, right = keras.Input((6,)), keras.Input((6,))
    model = keras.Model([left, right], layers.Dot(-1)([shared(left), shared(right)]))
    model.compile(keras.optimizers.SGD(0.05), "mae")
    trained = fit(model, [X, X[::-1].copy()], Y)
    return {**trained, "shared": shared.predict(X, batch_size=9, verbose=0)}


class TwoHeads(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.first, self.second = layers.Dense(8, "tanh"), layers.Dense(1), layers.Dense(3, "softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.hidden(inputs["x"]) + (0.1 if training else 0.0)
        return self.first(hidden), self.second(hidden)


@program
def a_subclass_with_two_outputs() -> Numbers:
    model = TwoHeads()
    losses = ["mse", keras.losses.SparseCategoricalCrossentropy()]
    model.compile("sgd", losses, loss_weights=[0.2, 1.0], metrics=[["mae"], ["accuracy"]])
    trained = fit(model, {"x": X}, [Y, LABELS], validation_data=({"x": X[:9]}, [Y[:9], LABELS[:9]]))
    return {**trained, "predicted": model.predict({"x": X}, batch_size=8, verbose=0)}


@program
def losses_of_several_kinds() -> Numbers:
    kinds = keras.losses
    found = {}
    for kind in (kinds.Huber(), kinds.LogCosh(), kinds.CosineSimilarity(), kinds.MeanAbsolutePercentageError()):
        model = dense(loss=kind, optimizer=keras.optimizers.SGD(1e-3))
        found[type(kind).__name__] = fit(model, X, Y + 3, epochs=1, sample_weight=WEIGHTS)
    return found


@program
def a_loss_that_is_a_function() -> Numbers:
    def weighted(true: Any, predicted: Any) -> Any:
        return tf.reduce_mean((1 + tf.abs(true)) * (true - predicted) ** 2, -1)

    return fit(dense(loss=weighted, metrics=[weighted]), validation_split=0.3)


@program
def metrics_of_several_kinds() -> Numbers:
    kinds = keras.metrics
    found = [kinds.RootMeanSquaredError(), kinds.CosineSimilarity(), kinds.LogCoshError()]
    regression = fit(dense(metrics=found), validation_data=(X[:31], Y[:31]), validation_batch_size=4)
    some = [kinds.F1Score(average="macro"), kinds.TopKCategoricalAccuracy(2), kinds.SensitivityAtSpecificity(0.5)]
    model = dense(layers.Dense(3, "softmax"), loss="categorical_crossentropy", metrics=some)
    return {"regression": regression, **fit(model, X, np.eye(3, dtype=np.float32)[LABELS], validation_split=0.3)}


class Counting(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean(name="size")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(tf.abs(inputs))
        return inputs


@program
def a_metric_in_a_layer() -> Numbers:
    return fit(dense(Counting(), layers.Dense(1)), validation_data=(X[:20], Y[:20]))


class OwnLoss(keras.Model):
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **more: Any
    ) -> Any:
        return super().compute_loss(x, y, y_pred, sample_weight, **more) + 0.1 * tf.reduce_mean(y_pred**2)


@program
def a_loss_of_the_models_own() -> Numbers:
    inputs = keras.Input((6,))
    model = OwnLoss(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)))
    model.compile("sgd", "mse", metrics=["mae"])
    return fit(model, validation_data=(X[:20], Y[:20]))


class OwnPrediction(keras.Model):
    def test_step(self, data: Any) -> Any:
        logs = super().test_step(data)
        return {**logs, "twice": 2 * logs["mae"]}

    def predict_step(self, data: Any) -> Any:
        return {"rows": super().predict_step(data), "signs": tf.sign(self(data))}


@program
def steps_of_evaluation_and_prediction() -> Numbers:
    inputs = keras.Input((6,))
    model = OwnPrediction(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"])
    return {**fit(model), "predicted": model.predict(X, batch_size=8, verbose=0)}


@program
def half_precision() -> Numbers:
    found = {}
    for policy in ("mixed_bfloat16", "mixed_float16"):
        hidden = layers.Dense(8, "tanh", dtype=policy)
        model = dense(hidden, layers.Dense(1, dtype="float32"), optimizer=keras.optimizers.SGD(1e-3))
        found[policy] = fit(model, epochs=1)["history"]  # sums of gradients are rounded, too
    return found


@program
def features_of_another_model() -> Numbers:
    first = dense()
    trained = fit(first, epochs=1)
    features = keras.Model(first.inputs, first.layers[0].output).predict(X, batch_size=7, verbose=0)
    second = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    second.compile("adam", "mae")
    return {"first": trained, "features": features, **fit(second, features, Y)}


@program
def an_optimizer_that_is_saved() -> Numbers:
    model = dense(optimizer=keras.optimizers.Adam(0.01), metrics=["mae"])
    first = fit(model, epochs=1)
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        model.save(str(Path(folder, "model.keras")))
        again = keras.models.load_model(str(Path(folder, "model.keras")))
    return {"first": first, **fit(again, epochs=2, initial_epoch=1)}


@program
def a_copy_that_is_trained() -> Numbers:
    model = dense()
    first = fit(model, epochs=1)
    again = keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    again.compile("adam", "mse")
    return {"first": first, **fit(again)}


@program
def parts_that_are_frozen() -> Numbers:
    normalization = layers.BatchNormalization(momentum=0.5)
    model = dense(normalization, layers.Dense(4, "tanh"), layers.Dense(1))
    first = fit(model)
    normalization.trainable = False
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return {"first": first, **fit(model)}


@program
def a_loop_over_single_batches() -> Numbers:
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = []
    for first in range(0, 53, 9):
        batch = X[first : first + 9], LABELS[first : first + 9]
        rows.append(model.train_on_batch(*batch, class_weight={0: 1.0, 1: 2.0, 2: 0.5}))
    model.reset_metrics()
    rows.append(model.train_on_batch(X[:8], LABELS[:8], sample_weight=WEIGHTS[:8]))
    return numbers(model, rows=rows)


if __name__ == "__main__":
    main()
