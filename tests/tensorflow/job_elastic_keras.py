"""``fit`` in the shape of Horovod's elastic pages, which does not use tfcollective: job_elastic_keras.py DIRECTORY
LOST. Run with --horovod-compat and --min-np on 3 ranks, of which rank LOST ends in its second epoch.

The one step of ``fit`` that makes the optimizer's variables is repeated when the world has changed, as ranks of
Horovod's that were there have to meet those that are new.
"""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from elastic_story import DIRECTORY, RANKS, Story

EPOCHS, BASE_RATE = 4, 0.015625
story = Story()

hvd.init()
for gpu in tf.config.experimental.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(64, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat().shuffle(64).batch(8)

model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
opt = tf.optimizers.SGD(BASE_RATE * hvd.size(), momentum=0.5)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss=tf.losses.MeanSquaredError(), optimizer=opt, metrics=["mae"], experimental_run_tf_function=False)
model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)

state = hvd.elastic.KerasState(model, batch=0, epoch=0, sizes=[])


def on_state_reset():
    tf.keras.backend.set_value(state.model.optimizer.lr, BASE_RATE * hvd.size())
    state.model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
    story.resets.append(hvd.size())


state.register_reset_callbacks([on_state_reset])


class Events(tf.keras.callbacks.Callback):
    """What happens in this test besides training."""

    def on_train_batch_begin(self, batch, logs=None):
        if state.epoch == 1 and batch == 2:
            story.end_here()

    def on_epoch_end(self, epoch, logs=None):
        if state.epoch == 2:
            story.wait_for_replacement(state, hvd)


class Sizes(tf.keras.callbacks.Callback):
    """Keeps of how many ranks each epoch was."""

    def on_epoch_end(self, epoch, logs=None):
        state.sizes = [*state.sizes, hvd.size()]


callbacks = [
    Sizes(),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.CommitStateCallback(state),
    Events(),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(str(DIRECTORY / "checkpoint-{epoch}.h5")))


@hvd.elastic.run
def train(state):
    state.model.fit(
        dataset, steps_per_epoch=24 // hvd.size(), epochs=EPOCHS - state.epoch, callbacks=callbacks, verbose=0
    )


story.wait_if_replacement()
train(state)

assert float(np.asarray(opt.learning_rate)) == BASE_RATE * RANKS
assert state.epoch == EPOCHS
story.finish(hvd, model, sizes=state.sizes, updates=int(np.asarray(opt.iterations)))
