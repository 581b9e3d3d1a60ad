"""What ranks must do together: skip a step, notice drift, agree on metrics; and what init() must leave alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

tfk.init()
rank, size = tfk.rank(), tfk.size()
if os.environ.get("TFC_TESTS_SECOND_DEVICE") != "1":  # which needs TensorFlow's runtime
    # It must not be up yet: these raise once it is.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.set_visible_devices(tf.config.list_physical_devices("CPU"), "CPU")

from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow._gradients import GradientOptions, reduce_gradients

keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
X = np.ones((8, 3), np.float32)
Y = np.zeros((8, 1), np.float32)


def small_model() -> object:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="only")])


def same_everywhere(value: object) -> bool:
    return len({repr(v) for v in tfc.allgather_object(value)}) == 1


def infinity_on_one_rank_skips_the_step_on_all() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    small = X * np.float32(0.01)  # far from overflow at the initial loss scale
    try:
        for wrapped_by_user in (False, True):
            optimizer = keras.optimizers.SGD(0.125)
            if wrapped_by_user:
                optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
            model = small_model()
            model.compile(tfk.DistributedOptimizer(optimizer), "mse")
            broadcast = tfk.BroadcastGlobalVariablesCallback(0)
            model.fit(small, Y, batch_size=8, verbose=0, callbacks=[broadcast])
            before = [tf.convert_to_tensor(w).numpy() for w in model.weights]
            poisoned = small * (np.float32(np.inf) if rank == size - 1 else 1)
            model.fit(poisoned, Y, batch_size=8, verbose=0)
            after = [tf.convert_to_tensor(w).numpy() for w in model.weights]
            for old, new in zip(before, after, strict=True):
                np.testing.assert_array_equal(old, new)
            model.fit(small, Y, batch_size=8, verbose=0)
            scaler = model.optimizer
            scale = float(scaler.dynamic_scale if KERAS_3 else scaler.loss_scale)
            assert scale == 2.0**14, scale
            weights = [tf.convert_to_tensor(w).numpy().tolist() for w in model.weights]
            assert not np.array_equal(weights[0], before[0].tolist())
            assert same_everywhere([weights, scale, int(model.optimizer.iterations)])
    finally:
        keras.mixed_precision.set_global_policy("float32")


def drift_is_found_and_named() -> None:
    if size == 1:
        return
    model = small_model()
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

    class Drift(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if batch == 0 and rank == 1:
                self.model.get_layer("only").bias.assign_add([0.5])

    try:
        model.fit(X, Y, batch_size=2, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0), Drift()])
    except tf.errors.InvalidArgumentError as error:
        assert "weights differ" in str(error) and "bias" in str(error) and "[1]" in str(error), error
    except tf.errors.CancelledError:
        pass  # TensorFlow may name what it has cancelled, as the next batch, in place of what has failed
    else:
        raise AssertionError("drift was not found")


def rounding_of_one_rank_is_taken_back() -> None:
    model = small_model()
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    kernel = model.get_layer("only").kernel
    seen = []

    class Round(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            value = tf.convert_to_tensor(kernel).numpy()
            seen.append(value.tobytes())
            if batch == 0 and rank == size - 1:
                kernel.assign(np.nextafter(value, np.float32(9)))

    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0), Round()])
    assert size == 1 or not same_everywhere(seen[1])
    assert same_everywhere(seen[2])


def a_learning_rate_of_one_rank_is_found() -> None:
    if size == 1:
        return
    model = small_model()
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

    class Plateau(keras.callbacks.Callback):
        """As ReduceLROnPlateau, which looks at metrics of this rank's data."""

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            if rank == 1:
                self.model.optimizer.learning_rate.assign(0.005)

    callbacks = [tfk.BroadcastGlobalVariablesCallback(0), Plateau()]
    try:
        model.fit(X, Y, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
    except tf.errors.InvalidArgumentError as error:
        assert "weights differ" in str(error) and "MetricAverageCallback" in str(error), error
    except tf.errors.CancelledError:
        pass  # TensorFlow may name what it has cancelled, as the next batch, in place of what has failed
    else:
        raise AssertionError("drift after the third step was not found")


def local_variables_may_drift() -> None:
    model = small_model()
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.01))
    broadcast = tfk.BroadcastGlobalVariablesCallback(0)
    for register in (optimizer, broadcast):
        register.register_local_var(model.get_layer("only").bias)
    model.get_layer("only").bias.assign([float(rank)])
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=2, verbose=0, callbacks=[broadcast])
    bias = tf.convert_to_tensor(model.get_layer("only").bias).numpy().tolist()
    assert size == 1 or not same_everywhere(bias)


def metrics_are_averaged_in_place() -> None:
    logs = {"loss": float(rank), "accuracy": 1.0, "text": np.ones(2)}
    tfk.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["loss"] == (size - 1) / 2
    assert logs["accuracy"] == 1.0


def two_buckets_are_in_flight_at_once() -> None:
    """Rank 1 starts its first bucket only after rank 0 has started its second: one op a bucket would wait forever."""
    if size == 1:
        return
    folder = tempfile.mkdtemp(prefix="tfcollective-overlap-") if rank == 0 else None
    sign = Path(tfc.broadcast_object(folder)) / "sign"
    original = ops.bucket_start

    def noted_start(tensors: list, *, plan: object, bucket: int) -> tf.Tensor:
        handle = original(tensors, plan=plan, bucket=bucket)
        if rank == 0 and bucket == 1:
            with tf.control_dependencies([handle]):
                touched = tf.numpy_function(lambda: (sign.touch(), np.int64(0))[1], [], tf.int64)
                return handle + touched
        return handle

    def wait_for_sign(x: np.ndarray) -> np.ndarray:
        deadline = time.monotonic() + 20
        while rank != 0 and not sign.exists():
            assert time.monotonic() < deadline, "the second bucket did not start before the first was done"
            time.sleep(0.01)  # another process makes the file
        return x

    ops.bucket_start = noted_start
    try:

        @tf.function
        def step() -> list:
            slow = tf.ensure_shape(tf.numpy_function(wait_for_sign, [tf.ones(4)], tf.float32), [4])
            options = GradientOptions(num_groups=2)
            return reduce_gradients([tf.ones(4), slow], [None, None], scope="overlap", options=options)

        first, second = step()
        np.testing.assert_array_equal(first, np.ones(4))
        np.testing.assert_array_equal(second, np.ones(4))
    finally:
        ops.bucket_start = original
        tfc.barrier()
        if rank == 0:
            shutil.rmtree(sign.parent)


def batch_normalization_sees_the_joint_batch() -> None:
    """Ranks with different numbers of rows: outputs, statistics and gradients as of one process with all rows."""
    joint = tf.constant(np.random.default_rng(3).normal(50.0, 3.0, (2 * size + 1, 4, 3)), tf.float32)
    weights = tf.constant(np.random.default_rng(4).normal(size=joint.shape), tf.float32)
    masks = tf.constant(np.random.default_rng(5).integers(0, 2, joint.shape[:2]), tf.bool)
    begin, end = (0, 3) if rank == 0 else (2 * rank + 1, 2 * rank + 3)
    mine = slice(begin, end)
    plain = {} if KERAS_3 else {"fused": False}

    @tf.function
    def outcome(layer: object, begin: int, end: int, masked: bool) -> tuple:
        rows = slice(begin, end)
        x = joint[rows]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=masks[rows]) if masked else layer(x, training=True)
            loss = tf.reduce_sum(y * weights[rows])
        return (y, *tape.gradient(loss, [x, *layer.trainable_variables]))

    for masked in (False, True):
        ours, reference = tfk.SyncBatchNormalization(), keras.layers.BatchNormalization(**plain)
        for layer in (ours, reference):
            layer.build(joint.shape)
        y, dx, *dw = outcome(ours, begin, end, masked)
        all_y, all_dx, *all_dw = outcome(reference, 0, len(joint), masked)
        np.testing.assert_allclose(y, all_y[mine], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dx, all_dx[mine], rtol=1e-3, atol=1e-4)
        for got, expected in zip(dw, all_dw, strict=True):
            np.testing.assert_allclose(tfc.allreduce(got, op=tfc.Sum), expected, rtol=1e-4, atol=1e-4)
        for got, expected in zip(ours.non_trainable_variables, reference.non_trainable_variables, strict=True):
            np.testing.assert_allclose(tf.convert_to_tensor(got), tf.convert_to_tensor(expected), rtol=1e-4)
            assert same_everywhere(tf.convert_to_tensor(got).numpy().tolist())


def several_passes_are_one_step_of_all_ranks() -> None:
    model = small_model()
    optimizer = tfk.DistributedOptimizer(
        keras.optimizers.SGD(0.125), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mse")
    model.set_weights([np.zeros((3, 1)), np.zeros(1)])
    targets = np.repeat([float(rank), float(rank + 2)], 4).astype(np.float32)[:, None]
    model.fit(X, targets, batch_size=4, shuffle=False, verbose=0)
    mean = (size - 1) / 2 + 1.0
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 0.25 * mean), rtol=1e-6)


def one_rank_may_build_more_models_and_have_a_smaller_last_batch() -> None:
    """Keras then numbers names differently, and a trace knows less of shapes."""
    if rank == 0:
        keras.Sequential([keras.layers.Input((3,)), keras.layers.Embedding(3, 2), keras.layers.Dense(3)])
        keras.metrics.MeanSquaredError()
    layers = [keras.layers.Embedding(5, 4), keras.layers.Dense(3, activation="relu"), tfk.SyncBatchNormalization()]
    model = keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1)])
    metric = keras.metrics.MeanSquaredError()
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", metrics=[metric])
    rows = 8 - (rank == size - 1)
    inputs, targets = np.ones((rows, 6), np.int32), np.zeros((rows, 6, 1), np.float32)
    callbacks = [tfk.BroadcastGlobalVariablesCallback(0), tfk.MetricAverageCallback()]
    model.fit(inputs, targets, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert same_everywhere([tf.convert_to_tensor(w).numpy().tolist() for w in model.trainable_weights])


def models_that_differ_are_named() -> None:
    layer = keras.layers.Dense(2 + rank, name=f"of_rank_{rank}")
    model = keras.Sequential([keras.layers.Input((3,)), layer, keras.layers.Dense(1, name="last")])
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    try:
        model.fit(X, Y, batch_size=8, verbose=0)
    except tf.errors.FailedPreconditionError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    for view in ("rank 0: line 2: bucket 0: variable 2 [2,1]", "rank 1: line 2: bucket 0: variable 2 [3,1]"):
        assert view in text, text
    assert text.count("last/kernel") == 2, text


def variables_that_differ_are_named() -> None:
    try:
        tfc.broadcast_variables([tf.Variable(tf.ones([2 + rank]), name=f"of_rank_{rank}")], root_rank=0)
    except tf.errors.FailedPreconditionError as error:
        assert all(f"[{2 + one}] from rank 0 (of_rank_{one}:0)" in str(error) for one in range(2)), error
    else:
        raise AssertionError("no error")


def means_over_tokens_are_those_of_one_process() -> None:
    numbers = np.random.default_rng(0)
    ids, labels = numbers.integers(1, 20, (16, 8)), numbers.integers(0, 4, (16, 8))
    for row in range(16):
        ids[row, 1 + row // 3 :] = 0  # the later rows, which rank 1 has, are longer

    def weights_after(loss: object, rows: slice) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        embedding = keras.layers.Embedding(20, 6, mask_zero=True)
        model = keras.Sequential([keras.layers.Input((8,), dtype="int32"), embedding, keras.layers.Dense(4)])
        model.compile(optimizer=tfk.DistributedOptimizer(keras.optimizers.SGD(0.5)), loss=loss)
        model.fit(ids[rows], labels[rows], batch_size=16, shuffle=False, epochs=3, verbose=0)
        return model.get_weights()

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    share = 16 // size
    own = slice(rank * share, (rank + 1) * share)
    whole = weights_after(loss, slice(0, 16))  # all ranks have all rows, as one process has
    ours = weights_after(tfk.GlobalMeanLoss(loss), own)
    for one, other in zip(whole, ours, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def statistics_are_those_of_all_ranks() -> None:
    layer = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.layers.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    seen = []

    class Validation(keras.callbacks.Callback):
        def on_test_begin(self, logs: object = None) -> None:
            seen.append(tf.convert_to_tensor(layer.moving_mean).numpy().tolist())

    callbacks = [tfk.BroadcastGlobalVariablesCallback(0), Validation()]
    model.fit(X * rank, Y, batch_size=4, verbose=0, validation_data=(X, Y), callbacks=callbacks)
    assert seen == [[0.75 * (size - 1) / 2] * 3], seen  # after two steps a rank has three quarters of its mean


for check in (
    one_rank_may_build_more_models_and_have_a_smaller_last_batch,
    infinity_on_one_rank_skips_the_step_on_all,
    drift_is_found_and_named,
    rounding_of_one_rank_is_taken_back,
    a_learning_rate_of_one_rank_is_found,
    local_variables_may_drift,
    metrics_are_averaged_in_place,
    two_buckets_are_in_flight_at_once,
    batch_normalization_sees_the_joint_batch,
    means_over_tokens_are_those_of_one_process,
    statistics_are_those_of_all_ranks,
    several_passes_are_one_step_of_all_ranks,
    variables_that_differ_are_named,
    models_that_differ_are_named,  # the last one: the ranks' plans do not fit, so nothing can follow
):
    check()
    print("ok", check.__name__, flush=True)
