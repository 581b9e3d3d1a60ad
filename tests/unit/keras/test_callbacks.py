"""The callbacks for learning rates and checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import InvalidArgumentError

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
X, Y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.seen.append(round(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)), 5))


def fit(optimizer: object, *callbacks: object, epochs: int = 2, **options: object) -> tuple[list[float], object]:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, "mse")
    rates = Rates()
    history = model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=[*callbacks, rates], **options)
    return rates.seen, history


def test_a_staircase_and_its_bounds() -> None:
    schedule = tfk.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3, momentum_correction=False
    )
    with fake_world(size=1):
        rates, history = fit(keras.optimizers.SGD(0.75), schedule, epochs=4)
    assert rates == [0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert history.history["lr"] == [0.75, 0.5, 0.25, 0.25]


def test_a_number_decays_exponentially() -> None:
    with fake_world(size=1):
        rates, _ = fit(keras.optimizers.Adam(9.0), tfk.callbacks.LearningRateScheduleCallback(1.0, 0.1), epochs=3)
    np.testing.assert_allclose(rates, [1.0, 1.0, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)


def test_warmup_ends_at_the_whole_rate(capsys: pytest.CaptureFixture[str]) -> None:
    warmup = tfk.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    with fake_world(size=4):
        rates, _ = fit(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)), warmup, epochs=3)
    np.testing.assert_allclose(rates, [0.175, 0.25, 0.325, 0.4, 0.4, 0.4], rtol=1e-6)
    assert "Epoch 2: finished gradual learning rate warmup to 0.4." in capsys.readouterr().out


@pytest.mark.parametrize("legacy", [False, True])
def test_a_velocity_follows_the_rate(legacy: bool) -> None:
    """With momentum 1 and gradient 0, each step moves by the velocity: it must follow the rate."""
    if legacy and KERAS_3:
        pytest.skip("Keras 3 has no legacy optimizers")
    kind = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
    moves = {}
    for corrected in (False, True):
        optimizer = kind(0.5, momentum=1.0)
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(optimizer, "mse")
        weight = model.trainable_variables[0]
        weight.assign([[2.0]])
        optimizer.apply_gradients([(tf.constant([[1.0]]), weight)])  # the velocity is now -0.5
        schedule = tfk.callbacks.LearningRateScheduleCallback(
            2.0, lambda epoch: 1.0, momentum_correction=corrected, steps_per_epoch=1
        )
        schedule.set_model(model)
        schedule.set_params({"steps": 1})
        schedule.on_train_begin()
        schedule.on_epoch_begin(0)
        schedule.on_train_batch_begin(0)
        before = float(tf.convert_to_tensor(weight)[0, 0])
        optimizer.apply_gradients([(tf.constant([[0.0]]), weight)])
        moves[corrected] = float(tf.convert_to_tensor(weight)[0, 0]) - before
    assert moves == {False: -0.5, True: -2.0}


class OwnUpdate(keras.optimizers.SGD):
    """Keeps the sum of past gradients, without the rate."""

    def update_step(self, gradient: object, variable: object, learning_rate: object = None) -> None:
        key = self._get_variable_index(variable) if KERAS_3 else self._index_dict[self._var_key(variable)]
        self.momentums[key].assign(self.momentum * self.momentums[key] + gradient)
        variable.assign_sub(0.1 * self.momentums[key])


@pytest.mark.parametrize("kind", ["RMSprop", "Muon", "OwnUpdate"])
@pytest.mark.parametrize("distributed", [False, True])
def test_momentum_without_the_rate_is_unchanged(kind: str, distributed: bool) -> None:
    made = OwnUpdate if kind == "OwnUpdate" else getattr(keras.optimizers, kind, None)
    if made is None:
        pytest.skip(f"this Keras has no {kind}")
    optimizer = made(0.5, momentum=0.5)
    with fake_world(size=2):
        optimizer = tfk.DistributedOptimizer(optimizer) if distributed else optimizer
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3)])
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        held = [v for v in (getattr(optimizer, "momentums", None) or optimizer._momentums) if v is not None]
        for variable in held:
            variable.assign(tf.ones(variable.shape))
        schedule = tfk.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 1.0, steps_per_epoch=1)
        schedule.set_model(model)
        schedule.set_params({"steps": 1})
        schedule.on_train_begin()
        schedule.on_epoch_begin(0)
        schedule.on_train_batch_begin(0)
    assert held
    for variable in held:
        np.testing.assert_array_equal(
            tf.convert_to_tensor(variable), tf.fill(variable.shape, [1.0, 2.0][kind == "RMSprop"])
        )


def test_what_stands_in_the_way_is_named() -> None:
    own = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    with fake_world(size=1):
        with pytest.raises(InvalidArgumentError, match="LearningRateSchedule of its own"):
            fit(own, tfk.callbacks.LearningRateScheduleCallback(1.0, 0.1))
        schedule = tfk.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 1.0, staircase=False)
        schedule.set_model(type("Model", (), {"optimizer": keras.optimizers.SGD()})())
        schedule.set_params({"steps": None})
        with pytest.raises(InvalidArgumentError, match="steps_per_epoch"):
            schedule.on_train_begin()


class Falls(keras.callbacks.Callback):
    """Makes the monitored value of every epoch."""

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        logs["val_loss"] = [3.0, 1.0, 2.0][epoch]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_best_model_is_kept_by_rank_0(rank: int, tmp_path: Path) -> None:
    path = tmp_path / "best-{epoch}.weights.h5"
    best = tfk.callbacks.BestModelCheckpoint(save_weights_only=True, filepath=str(path))
    with fake_world(rank=rank):
        fit(tfk.DistributedOptimizer(keras.optimizers.SGD(0.01)), Falls(), best, epochs=3)
    saved = sorted(file.name for file in tmp_path.iterdir())
    assert saved == (["best-1.weights.h5", "best-2.weights.h5"] if rank == 0 else [])


def test_a_checkpoint_needs_its_path_when_training() -> None:
    best = tfk.callbacks.BestModelCheckpoint()
    with fake_world(size=1), pytest.raises(InvalidArgumentError, match="filepath"):
        fit(keras.optimizers.SGD(0.01), best)
