"""A typical script for Horovod, which does not use tfcollective. Run with --horovod-compat on 2 ranks."""

import os

import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from horovod.keras.callbacks import LearningRateWarmupCallback
from horovod.tensorflow.compression import Compression

hvd.init()
assert hvd.size() == 2
assert [int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE")] == [hvd.rank(), hvd.size()]
assert int(os.environ["LOCAL_RANK"]) == hvd.local_rank()
assert int(horovod.__version__.split(".")[1]) == 28

gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).repeat().batch(8)


def new_model() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])


def with_keras() -> None:
    model = new_model()
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9),
        backward_passes_per_step=1,
        average_aggregated_gradients=True,
        compression=Compression.fp16,
    )
    model.compile(loss="mse", optimizer=optimizer, metrics=["mae"])
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        LearningRateWarmupCallback(initial_lr=0.05 * hvd.size(), warmup_epochs=2, verbose=1),
    ]
    history = model.fit(dataset, steps_per_epoch=8, callbacks=callbacks, epochs=4, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    everyone = hvd.allgather_object([w.tolist() for w in model.get_weights()])
    assert everyone[0] == everyone[1]


def with_a_tape() -> None:
    model = new_model()
    optimizer = tf.keras.optimizers.Adam(0.01 * hvd.size())

    @tf.function
    def training_step(rows: tf.Tensor, targets: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows, training=True) - targets) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            variables = optimizer.variables
            hvd.broadcast_variables(variables() if callable(variables) else variables, root_rank=0)
        return loss

    for batch, (rows, targets) in enumerate(dataset.take(6)):
        loss = training_step(rows, targets, batch == 0)
    assert np.isfinite(float(hvd.allreduce(loss, average=True)))


def with_a_session() -> None:
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", initializer=tf.constant([float(hvd.rank())]))
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.25))
        train = optimizer.minimize(tf.reduce_sum(weight * (hvd.rank() + 1.0)), global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.compat.v1.train.StopAtStepHook(last_step=2)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(train)
                last = session.run(weight) if not session.should_stop() else None
        assert last is None or last[0] == -0.375


for check in (with_keras, with_a_tape, with_a_session):
    check()
    print("ok", check.__name__, flush=True)
assert horovod.keras.size() == hvd_keras.size() == 2
hvd.shutdown()
