"""A KerasExperiment whose job is started again ends like an undisturbed one."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from jobs import QUIET

import tfcollective
import tfcollective.keras as tfk
from tfcollective import _runtime as runtime

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.timeout(600)]

BATCHES, EPOCHS, SHARE = 6, 2, 4


def data():
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(BATCHES * SHARE * 2, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((inputs, np.tanh(inputs.sum(1, keepdims=True))))


def new_model(optimizer):
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def momentum():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


class Dies(tf.keras.callbacks.Callback):
    """Rank 1 kills itself in the second epoch, the first time that the job is started."""

    def on_train_batch_begin(self, batch, logs=None):
        first = runtime.settings().restarts == 0
        if first and runtime.rank() == 1 and self.model.optimizer.iterations == BATCHES + 4:
            os.kill(os.getpid(), signal.SIGKILL)


def experiment(model_dir):
    tfk.init()
    return tfk.KerasExperiment(
        lambda: new_model(tfk.DistributedOptimizer(momentum())),
        model_dir,
        {"epochs": EPOCHS, "shuffle": False, "callbacks": [Dies()]},
        lambda: tfk.shard(data()).batch(SHARE),
        backup_freq=3,
    )


@pytest.mark.long
def test_it_goes_on_where_it_was_backed_up(tmp_path, capfd):
    histories = tfcollective.run(experiment, (str(tmp_path),), np=2, max_restarts=1, env=QUIET)
    assert [len(history["loss"]) for history in histories] == [1, 1]  # the first epoch was not trained again
    assert "was killed by SIGKILL; all ranks are started again" in capfd.readouterr().err
    assert not (tmp_path / "backup" / "backup.npz").exists()  # training is complete
    undisturbed = new_model(momentum())
    undisturbed.fit(data().batch(2 * SHARE), epochs=EPOCHS, shuffle=False, verbose=0)
    trained = tf.keras.models.load_model(tmp_path / "model.keras")
    for ours, expected in zip(trained.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
