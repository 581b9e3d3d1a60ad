"""A custom loop in the shape of Horovod's elastic pages, which does not use tfcollective: job_elastic_loop.py DIRECTORY
LOST. Run with --horovod-compat and --min-np on 3 ranks, of which rank LOST ends halfway."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from elastic_story import RANKS, STEPS, Story
from horovod.common.exceptions import HorovodInternalError

BASE_RATE = 0.015625
story = Story()

hvd.init()
for gpu in tf.config.experimental.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(64, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat().shuffle(64).batch(8)

model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
loss = tf.losses.MeanSquaredError()
opt = tf.optimizers.SGD(BASE_RATE * hvd.size(), momentum=0.5)
traced = []


@tf.function
def training_step(rows, targets, allreduce=True):
    traced.append(allreduce)
    with tf.GradientTape() as tape:
        loss_value = loss(targets, model(rows, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss_value


for rows, targets in dataset.take(1):  # makes the variables of model and optimizer
    training_step(rows, targets, allreduce=False)


@hvd.elastic.run
def train(state):
    for rows, targets in dataset.take(STEPS - state.batch):
        if state.batch == STEPS // 3:
            story.end_here()
        training_step(rows, targets)
        state.sizes = [*state.sizes, hvd.size()]
        state.batch += 1
        state.commit()
        if state.batch == 2 * STEPS // 3:
            story.wait_for_replacement(state, hvd)


def on_state_reset():
    opt.lr.assign(BASE_RATE * hvd.size())
    story.resets.append(hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0, sizes=[])
state.register_reset_callbacks([on_state_reset])
assert issubclass(HorovodInternalError, RuntimeError)

story.wait_if_replacement()
train(state)

assert float(opt.learning_rate.numpy()) == BASE_RATE * RANKS
story.finish(hvd, model, sizes=state.sizes, traced=traced, updates=int(opt.iterations.numpy()))
