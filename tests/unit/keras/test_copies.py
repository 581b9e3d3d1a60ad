"""Copies of distributed optimizers, and of models that have one, reduce as the original does."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeOps, fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._optimizers import distributed_states

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
keras_3_only = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such thing")
LossScaleOptimizer = getattr(keras.optimizers, "LossScaleOptimizer", None) or keras.mixed_precision.LossScaleOptimizer


def kinds() -> list:
    return [keras.optimizers.Adam] if KERAS_3 else [keras.optimizers.Adam, keras.optimizers.legacy.Adam]


def model(optimizer: object, **options: object) -> object:
    # From some random weights steps as large as those of these tests grow without end, and scaled gradients overflow.
    small = {"kernel_initializer": keras.initializers.Constant(0.1)}
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, **small), keras.layers.Dense(1, **small)])
    made.compile(optimizer, "mse", **options)
    return made


def fit(made: object) -> object:
    made.fit(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
    return made


def started(ops: FakeOps) -> int:
    return ops.count("start keras_optimizer")


def pickled(thing: object) -> object:
    return pickle.loads(pickle.dumps(thing))


def configured(optimizer: object) -> object:
    return type(optimizer).from_config(optimizer.get_config())


def changed(optimizer: object) -> object:
    config = copy.deepcopy(optimizer.get_config())
    config["learning_rate"] = 0.25
    return type(optimizer).from_config(config)


COPIES = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": pickled, "config": configured, "changed": changed}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
def test_a_copied_optimizer_reduces_the_same_way(kind: type, built: bool, way: str) -> None:
    with fake_world() as ops:
        options = {"op": tfk.Sum, "compression": tfk.Compression.fp16, "backward_passes_per_step": 2}
        optimizer = tfk.DistributedOptimizer(kind(0.5), **options)
        if built:
            fit(model(optimizer))
        made = COPIES[way](optimizer)
        state = made._tfcollective
        assert made is not optimizer
        assert state.scope != optimizer._tfcollective.scope
        assert (state.options.op, state.options.compression) == (tfk.Sum, tfk.Compression.fp16)
        assert type(made) is type(optimizer)
        assert float(tf.convert_to_tensor(made.learning_rate)) == (0.25 if way == "changed" else 0.5)
        ops.ran.clear()
        fit(model(made))
        assert started(ops) == 1  # of two passes


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_goes_on_with_the_state(way: str) -> None:
    with fake_world():
        made = fit(model(tfk.DistributedOptimizer(keras.optimizers.Adam(0.5))))
        again = COPIES[way](made.optimizer)
        assert int(again.iterations) == 2
        again.build(made.trainable_variables)
        for mine, theirs in zip(again.variables, made.optimizer.variables, strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(mine), tf.convert_to_tensor(theirs))


def test_a_copy_for_other_variables_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    with fake_world():
        made = fit(model(tfk.DistributedOptimizer(keras.optimizers.Adam(0.5))))
        other = copy.deepcopy(made.optimizer)
        other.apply_gradients([(tf.ones(3), tf.Variable([1.0, 2.0, 3.0]))])
    assert "used for other variables" in caplog.text


def test_an_optimizer_that_its_class_makes_reduces() -> None:
    variable = tf.Variable([1.0])
    with fake_world() as ops:
        made = type(tfk.DistributedOptimizer(keras.optimizers.SGD()))(0.5)
        made.apply_gradients([(tf.constant([1.0]), variable)])
    assert started(ops) == 1
    np.testing.assert_array_equal(variable, [0.5])


def test_configurations_are_written_without_what_they_carry() -> None:
    config = tfk.DistributedOptimizer(keras.optimizers.SGD(0.5)).get_config()
    assert json.loads(json.dumps(config, default=float)) == dict(config)  # the rate is of numpy in Keras 2
    assert type(pickled(config)) is dict
    assert dict(config) == dict(keras.optimizers.SGD.from_config({**config}).get_config())


def cloned(made: object) -> object:
    again = keras.models.clone_model(made)
    if not getattr(again, "optimizer", None):  # Keras 2 does not compile it
        again.compile_from_config(made.get_compile_config())
    return again


MODEL_COPIES = {"deepcopy": copy.deepcopy, "pickle": pickled, "clone_model": cloned}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("way", MODEL_COPIES)
def test_a_copy_of_a_model_reduces(way: str, scaled: bool) -> None:
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.Adam(0.5), op=tfk.Sum)
        made = fit(model(LossScaleOptimizer(optimizer) if scaled else optimizer))
        again = MODEL_COPIES[way](made)
        (state,) = distributed_states(again).values()
        assert state.options.op == tfk.Sum
        if way != "clone_model":
            assert int(again.optimizer.iterations) == 2
            np.testing.assert_array_equal(again.get_weights()[0], made.get_weights()[0])
        ops.ran.clear()
        fit(again)
        assert started(ops) == 2
        ops.ran.clear()
        fit(made)  # the original does, too
        assert started(ops) == 2


def test_local_variables_and_groups_follow_the_copy() -> None:
    with fake_world() as ops:
        made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        groups = [made.layers[-1].trainable_variables]
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.5), local_layers=made.layers[-2], groups=groups)
        made.compile(optimizer, "mse")
        fit(made)
        for way in MODEL_COPIES.values():
            again = way(made)
            (state,) = distributed_states(again).values()
            ops.signatures.clear()
            fit(again)
            (signature,) = ops.signatures.values()
            assert len(signature.splitlines()) == 2
            assert [v is w for v, w in zip(state.options.groups[0], again.layers[-1].trainable_variables)] == [True] * 2
        with pytest.raises(UnsupportedError, match="pickle the model"):
            pickle.dumps(made.optimizer)
        assert copy.deepcopy(made.optimizer)._tfcollective.local.keys() == optimizer._tfcollective.local.keys()


@pytest.mark.parametrize("way", ["config", "deepcopy", "pickle"])
def test_a_copy_of_a_scaler_reduces(way: str) -> None:
    if not KERAS_3 and way != "config":
        pytest.skip("Keras 2 cannot copy its LossScaleOptimizer")
    with fake_world():
        scaler = LossScaleOptimizer(tfk.DistributedOptimizer(keras.optimizers.SGD(0.5), op=tfk.Sum))
        again = COPIES[way](scaler)
        assert again.inner_optimizer._tfcollective.options.op == tfk.Sum
        plain = COPIES[way](LossScaleOptimizer(keras.optimizers.SGD(0.5)))
        assert not distributed_states(plain)


@keras_3_only
@pytest.mark.parametrize("way", ["config", "deepcopy", "pickle"])
def test_a_copy_of_several_optimizers_reduces(way: str) -> None:
    with fake_world():
        parts = [tfk.DistributedOptimizer(keras.optimizers.SGD(0.5)), keras.optimizers.Adam()]
        several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(parts[0], {"dense/.*": parts[1]}))
        assert list(distributed_states(COPIES[way](several))) == list(distributed_states(several))


@keras_3_only
def test_configurations_are_the_yaml_of_plain_optimizers() -> None:
    yaml = pytest.importorskip("yaml")
    with fake_world():
        plain = keras.optimizers.Adam(0.5, name="adam")
        optimizer = tfk.DistributedOptimizer(plain)
        assert yaml.safe_dump(optimizer.get_config()) == yaml.safe_dump(plain.get_config())
        config = model(optimizer).get_compile_config()
        for dump in (yaml.dump, yaml.safe_dump):
            assert yaml.safe_load(dump(config)) == config


def test_copies_of_plain_models_stay_plain() -> None:
    with fake_world(local_training=True) as ops:
        made = fit(model("adam"))
        for way in MODEL_COPIES.values():
            fit(way(made))
    assert ops.ran == []


# ---- schedules and scales --------------------------------------------------------------------------------------------


class Unconfigured(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: object) -> object:
        return 0.5 / (tf.cast(step, tf.float32) + 1.0)


class Unregistered(Unconfigured):
    def get_config(self) -> dict:
        return {}


@pytest.mark.parametrize("schedule", [Unconfigured, Unregistered])
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("way", ["wrapped", "deepcopy"])
def test_a_schedule_of_the_users_own(kind: type, schedule: type, way: str) -> None:
    kind = (
        {"Adam": keras.optimizers.SGD}[kind.__name__]
        if KERAS_3 or "legacy" not in kind.__module__
        else (keras.optimizers.legacy.SGD)
    )
    variable = tf.Variable([4.0])
    plain = kind(schedule())
    with fake_world():
        optimizer = tfk.DistributedOptimizer(plain)
        if way == "deepcopy":
            optimizer = copy.deepcopy(optimizer)
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_array_equal(variable, [3.25])
    plain.apply_gradients([(tf.constant([1.0]), variable)])  # it has kept its schedule
    np.testing.assert_array_equal(variable, [2.75])


def scale_of(scaler: object) -> float:
    return float(scaler.dynamic_scale if KERAS_3 else scaler.loss_scale)


def set_scale(scaler: object, value: float) -> None:
    (scaler.dynamic_scale if KERAS_3 else scaler._loss_scale.current_loss_scale).assign(value)


@pytest.mark.parametrize("distributed", [False, True])
def test_a_loss_scale_survives_load_model(distributed: bool, tmp_path: Path) -> None:
    with fake_world(local_training=True) as ops:
        inner = keras.optimizers.SGD(0.5)
        made = fit(model(LossScaleOptimizer(tfk.DistributedOptimizer(inner) if distributed else inner)))
        set_scale(made.optimizer, 128.0)
        made.save(tmp_path / "model.keras")
        ops.ran.clear()
        loaded = tfk.load_model(tmp_path / "model.keras")
        assert scale_of(loaded.optimizer) == (128.0 if KERAS_3 else 2.0**15)  # Keras 2 does not write it into the file
        assert int(loaded.optimizer.iterations) == 2
        fit(loaded)
    assert started(ops) == 2


def test_a_loss_scale_is_taken_over() -> None:
    with fake_world(local_training=True):
        made = fit(model(LossScaleOptimizer(keras.optimizers.SGD(0.5))))
        set_scale(made.optimizer, 128.0)
        wrapped = tfk.DistributedOptimizer(made.optimizer)
        made.compile(wrapped, "mse")
        fit(made)
    assert scale_of(wrapped) == 128.0
    assert int(wrapped.iterations) == 4


def test_load_model_distributes_all_optimizers(tmp_path: Path) -> None:
    if not KERAS_3:
        pytest.skip("Keras 2 has no MultiOptimizer")
    with fake_world(local_training=True):
        parts = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5), {"dense/.*": keras.optimizers.Adam()})
        fit(model(keras.optimizers.MultiOptimizer(parts))).save(tmp_path / "model.keras")
        assert len(distributed_states(tfk.load_model(tmp_path / "model.keras"))) == 2
