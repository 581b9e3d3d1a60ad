"""Models with several optimizers: a GAN's, Keras 3's MultiOptimizer, and training steps with a tape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective._base.errors import ConfigError
from tfcollective.keras import _synchronisation as synchronisation
from tfcollective.keras._optimizers import distributed_states, optimizers_of
from tfcollective.tensorflow import _xla as xla

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
keras_3_only = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such thing")
X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


class Gan(keras.Model):
    """Two halves, each with an optimizer of its own."""

    def __init__(self, inner: object = None) -> None:
        super().__init__()
        self.g, self.d, self.inner = keras.layers.Dense(3), keras.layers.Dense(1), inner

    def compile(self, g_optimizer: object, d_optimizer: object, **options: object) -> None:
        super().compile(**options)
        self.g_optimizer = g_optimizer
        self.more = {"d": [d_optimizer]}

    def call(self, x: object) -> object:
        return self.d(self.g(x))

    def train_step(self, data: tuple) -> dict:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        for optimizer, layer in ((self.g_optimizer, self.g), (self.more["d"][0], self.d)):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def gan(kind: str = "Adam", inner: object = None, **options: object) -> Gan:
    made = Gan(inner)
    made.build((None, 3))
    made(X)
    optimizers = [tfk.DistributedOptimizer(getattr(keras.optimizers, kind)(0.1)) for _ in range(2)]
    made.compile(*optimizers, **options)
    return made


def test_all_optimizers_have_the_same_places_everywhere() -> None:
    inner = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    inner.compile("sgd", "mse")
    made = gan(inner=inner)
    places = list(optimizers_of(made))
    assert places[:1] == (["optimizer"] if KERAS_3 else places[:1])
    assert {"g_optimizer", "more['d'][0]"} < set(places)
    assert sum(place.startswith("layers[") for place in places) == 1
    assert list(distributed_states(made)) == ["g_optimizer", "more['d'][0]"]
    assert list(optimizers_of(gan())) == [place for place in places if not place.startswith("layers[")]


def test_all_states_are_broadcast_after_one_step() -> None:
    with fake_world(replica_check_steps=1) as ops:
        made = gan()
        made.fit(X, Y, batch_size=2, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0)])
        slots = {id(v) for place in ("g_optimizer", "more['d'][0]") for v in optimizers_of(made)[place].variables}
    order = [entry.split()[0] for entry in ops.ran]
    first_step = order.index("start")
    at_first = order[:first_step].count("broadcast")
    assert at_first >= len(made.weights)
    assert order[first_step:].count("broadcast") >= len(made.weights) + len(slots)
    assert "compare" not in order[: order.index("broadcast", first_step)]
    assert order.count("compare") > 0


class CentredByItsFirstBatch(keras.layers.Layer):
    """Sets a weight that is trained from the first batch that it sees."""

    def build(self, shape: tuple) -> None:
        self.centre = self.add_weight(shape=(shape[-1],), initializer="zeros", name="centre")
        self.ready = self.add_weight(shape=(), initializer="zeros", trainable=False, name="ready")

    def call(self, inputs: object) -> object:
        ready = tf.convert_to_tensor(self.ready)
        self.centre.assign(ready * self.centre + (1 - ready) * tf.reduce_mean(inputs, 0))
        self.ready.assign(1.0)
        return inputs - self.centre


@pytest.mark.parametrize("built", [False, True])
def test_weights_are_broadcast_after_the_first_step_too(built: bool) -> None:
    with fake_world(replica_check_steps=1) as ops:
        given = [keras.layers.Input((2,))] if built else []
        made = keras.Sequential([*given, CentredByItsFirstBatch(), keras.layers.Dense(1)])
        made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        made.fit(X[:, :2], Y, batch_size=2, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0)])
    order = [entry.split()[0] for entry in ops.ran]
    first_step = order.index("done")
    assert order[:first_step].count("broadcast") >= (len(made.weights) if built else 0)
    second_step = order.index("start", first_step)
    assert order[first_step:second_step].count("broadcast") >= len(made.weights)
    assert "compare" not in order[:second_step]
    assert "broadcast" not in order[second_step:]


def test_a_broadcast_omits_optimizers_not_built_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronisation, "allgather_object", lambda obj, **_m: [obj, {**obj, "g_optimizer": 99}])
    with fake_world() as ops:
        made = gan()
        made.fit(X, Y, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0)])
        others = [o for place, o in optimizers_of(made).items() if place != "g_optimizer"]
        expected = len(made.weights) + sum(len(optimizer.variables) for optimizer in others)
    order = [entry.split()[0] for entry in ops.ran]
    assert order[order.index("start") :].count("broadcast") == expected


def test_a_resumed_run_has_every_optimizers_state(tmp_path: Path) -> None:
    """Three epochs at once, and two with a third one after an interruption, end with the same weights."""
    start = [w * 0.1 for w in gan().get_weights()]

    def train(epochs: int, **options: object) -> Gan:
        with fake_world():
            made = gan()
            made.set_weights(start)
            callbacks = [tfk.BackupAndRestore(tmp_path / "backup", **options)] if options else []
            made.fit(X, Y, batch_size=4, shuffle=False, epochs=epochs, verbose=0, callbacks=callbacks)
            return made

    whole = train(3)
    train(2, delete_checkpoint=False)
    resumed = train(3, delete_checkpoint=False)
    assert int(resumed.g_optimizer.iterations) == 6
    for mine, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_experiment_takes_them(tmp_path: Path) -> None:
    class Taped(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d = keras.layers.Dense(1)

        def call(self, x: object) -> object:
            return self.d(x)

        def train_step(self, data: tuple) -> dict:
            with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean(self(data[0]) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    taped = Taped()
    taped.compile("sgd")
    plain = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with fake_world():
        for taken in (gan(), taped):
            assert tfk.KerasExperiment(taken, str(tmp_path))._make_model() is taken
        with pytest.raises(ConfigError, match="DistributedOptimizer"):
            tfk.KerasExperiment(plain, str(tmp_path))._make_model()


@keras_3_only
def test_ranks_agree_before_an_outer_scaler_decides() -> None:
    parts = keras.optimizers.OptimizerMap(
        tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        {"b": tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))},
    )
    variables = [keras.Variable([1.0], name=name) for name in "ab"]
    with fake_world() as ops:
        scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.MultiOptimizer(parts))
        scaler.apply([tf.constant([1.0])] * 2, variables)
        scaler.apply([tf.constant([np.inf]), tf.constant([1.0])], variables)
    assert [entry.endswith("/finite") for entry in ops.ran if entry.startswith("allreduce")] == [True, True]
    assert ops.count("start") == 2


@keras_3_only
def test_auto_jit_is_false_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    device = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    real = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [*real(kind), device])
    with fake_world() as ops:
        made = gan("SGD")
        assert made.jit_compile is True  # compile has not seen them
        made.fit(X, Y, verbose=0)
        assert made.jit_compile is False
    assert ops.count("start") == 2


def test_explicit_jit_gives_advice_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "problem_of", lambda library: "there are no calls")
    with fake_world(), pytest.raises(ConfigError, match="jit_compile=False"):
        gan("SGD", jit_compile=True).fit(X, Y, verbose=0)


@keras_3_only
def test_a_multi_optimizers_state_is_broadcast_first() -> None:
    parts = keras.optimizers.OptimizerMap(tfk.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    with fake_world() as ops:
        made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.MultiOptimizer(parts), "mse")
        made.fit(X, Y, verbose=0, callbacks=[tfk.BroadcastGlobalVariablesCallback(0)])
        wanted = len(made.weights) + len(made.optimizer.variables)
    assert [entry.split()[0] for entry in ops.ran][:wanted] == ["broadcast"] * wanted
    assert ops.count("broadcast") == wanted + len(made.weights)  # which layers may set from their first batch
