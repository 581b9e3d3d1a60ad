"""The distributed optimizer over imagined ranks: reduced exactly once, in the right place, on every path."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeOps, fake_world
from time_limits import within

import tfcollective.keras as tfk
from tfcollective._base.errors import ConfigError, InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow import _xla as xla

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
keras_3_only = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such thing")


def model(optimizer: object, **options: object) -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", **options)
    return made


def data(rows: int = 8) -> tuple:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) / rows, np.ones((rows, 1), np.float32)


def started(ops: FakeOps) -> int:
    return ops.count("start keras_optimizer")


def test_fit_reduces_once_a_step() -> None:
    with fake_world() as ops:
        model(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))).fit(*data(), batch_size=2, epochs=2, verbose=0)
    assert started(ops) == 8
    assert ops.count("done") == 8


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_steps_per_execution(run_eagerly: bool) -> None:
    with fake_world() as ops:
        made = model(tfk.DistributedOptimizer(keras.optimizers.Adam()), steps_per_execution=3, run_eagerly=run_eagerly)
        made.fit(*data(12), batch_size=2, verbose=0)
    assert started(ops) == 6


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("method", ["apply", "apply_gradients", "minimize"])
def test_custom_loops_reduce_once(method: str, traced: bool) -> None:
    variable = tf.Variable([1.0, 2.0])
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.5), op=tfk.Sum)
    if not hasattr(optimizer, method):
        pytest.skip(f"this Keras has no Optimizer.{method}")

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable)
        if method == "minimize":
            optimizer.minimize(loss, [variable], tape=tape)
        elif method == "apply":
            optimizer.apply(tape.gradient(loss, [variable]), [variable])
        else:
            optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable], strict=True))

    with fake_world() as ops:
        (tf.function(step) if traced else step)()
    assert started(ops) == 1
    np.testing.assert_array_equal(variable, [0.0, 1.0])


@pytest.mark.parametrize("clip", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_reduced_before_clipping(clip: str) -> None:
    variable = tf.Variable([0.0])
    with fake_world():
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(1.0, **{clip: 1.5}), op=tfk.Sum)
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_allclose(variable, [-1.5], rtol=1e-6)  # clipped first it would be -2


def test_weight_decay_and_ema_come_after() -> None:
    variable = tf.Variable([1.0])
    with fake_world():
        optimizer = tfk.DistributedOptimizer(
            keras.optimizers.SGD(1.0, weight_decay=0.5, use_ema=True, ema_momentum=0.5), op=tfk.Sum
        )
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_allclose(variable, [1.0 - 0.5 - 2.0], rtol=1e-6)


@keras_3_only
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_accumulated_gradients_are_reduced_once_an_update(run_eagerly: bool) -> None:
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
        model(optimizer, run_eagerly=run_eagerly).fit(*data(16), batch_size=2, verbose=0)
    assert started(ops) == 2


@keras_3_only
@pytest.mark.parametrize("wrapped_by_user", [False, True])
def test_all_ranks_agree_before_a_loss_scaler_decides(wrapped_by_user: bool) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with fake_world() as ops:
        if wrapped_by_user:
            optimizer = tfk.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
        else:
            optimizer = keras.optimizers.LossScaleOptimizer(tfk.DistributedOptimizer(optimizer))
        variable = tf.Variable([1.0])
        optimizer.apply([tf.constant([1.0])], [variable])
        optimizer.apply([tf.constant([np.inf])], [variable])
    assert ops.count("allreduce keras_optimizer") == 2
    assert started(ops) == 1


@pytest.mark.skipif(KERAS_3, reason="Keras 2's scaler")
@pytest.mark.parametrize("legacy", [False, True])
def test_keras_2_reduces_before_a_loss_scaler_decides(legacy: bool) -> None:
    kind = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
    with fake_world() as ops:
        inner = tfk.DistributedOptimizer(kind(0.1))
        optimizer = keras.mixed_precision.LossScaleOptimizer(inner)
        variable = tf.Variable([1.0])
        optimizer.get_scaled_loss(tf.constant(1.0))
        optimizer.get_unscaled_gradients([tf.constant([1.0])])
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        optimizer.apply_gradients([(tf.constant([np.inf]), variable)])
    assert started(ops) == 2


@pytest.mark.skipif(KERAS_3, reason="Keras 2's older optimizers")
def test_legacy_optimizers() -> None:
    variable = tf.Variable([0.0])
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.legacy.SGD(1.0, clipvalue=1.5), op=tfk.Sum)
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        model(tfk.DistributedOptimizer(keras.optimizers.legacy.Adam())).fit(*data(), batch_size=2, verbose=0)
    assert started(ops) == 5
    np.testing.assert_allclose(variable, [-1.5])


@pytest.mark.skipif(KERAS_3, reason="Keras 2's older optimizers")
def test_legacy_optimizers_with_methods_of_their_own() -> None:
    """Nadam, and an Adam with decoupled weight decay as libraries for language models have it."""

    class AdamWeightDecay(keras.optimizers.legacy.Adam):
        def __init__(self, learning_rate: object = 0.001, decay_rate: float = 0.0, **options: object) -> None:
            super().__init__(learning_rate, **options)
            self.decay_rate = decay_rate

        @classmethod
        def from_config(cls, config: dict) -> object:
            return super().from_config(config, custom_objects={})

        def _prepare_local(self, var_device: object, var_dtype: object, apply_state: dict) -> None:
            super()._prepare_local(var_device, var_dtype, apply_state)
            apply_state[var_device, var_dtype]["decay_rate"] = tf.constant(self.decay_rate, var_dtype)

        def apply_gradients(self, grads_and_vars: object, name: str | None = None, **options: object) -> object:
            gradients, variables = zip(*grads_and_vars, strict=True)
            gradients, _ = tf.clip_by_global_norm(gradients, clip_norm=1.0)
            return super().apply_gradients(zip(gradients, variables, strict=True), name=name, **options)

        def _resource_apply_dense(self, grad: object, var: object, apply_state: dict) -> object:
            state = apply_state[var.device, var.dtype.base_dtype]
            with tf.control_dependencies([var.assign_sub(state["lr_t"] * state["decay_rate"] * var)]):
                return super()._resource_apply_dense(grad, var, apply_state=apply_state)

        def get_config(self) -> dict:
            return {**super().get_config(), "decay_rate": self.decay_rate}

    for made in (keras.optimizers.legacy.Nadam(0.01), AdamWeightDecay(0.01, 0.5), AdamWeightDecay(0.01)):
        for passes in (1, 2):
            with fake_world() as ops:
                optimizer = tfk.DistributedOptimizer(made, backward_passes_per_step=passes)
                model(optimizer).fit(*data(), batch_size=2, verbose=0)
            assert started(ops) == 4 // passes


def test_sparse_embedding_and_none_gradients() -> None:
    made = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    with fake_world() as ops:
        made.compile(tfk.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        made.fit(np.arange(8).reshape(4, 2) % 10, np.ones((4, 1), np.float32), verbose=0)
        unused = tf.Variable([1.0])
        used = tf.Variable([1.0])
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.5))
        optimizer.apply_gradients([(tf.constant([1.0]), used), (None, unused)])
    assert started(ops) == 2
    assert ops.count("allgather") == 2
    assert float(used[0]) == 0.5


def test_wrapping_takes_over_state_and_settings() -> None:
    plain = keras.optimizers.Adam(0.5, name="mine")
    made = model(plain)
    made.fit(*data(), verbose=0)
    with fake_world():
        again = tfk.DistributedOptimizer(plain)
        again.build(made.trainable_variables)
    assert again.name == "mine"
    assert int(again.iterations) == 1
    for mine, theirs in zip(again.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(mine), tf.convert_to_tensor(theirs))


def test_the_state_is_taken_over_in_fit() -> None:
    """Keras 3 builds it while it traces the training step: the values must not become a part of every step."""
    plain = keras.optimizers.SGD(0.1, momentum=0.5)
    made = model(plain)
    made.fit(*data(), batch_size=2, verbose=0)
    with fake_world():
        again = tfk.DistributedOptimizer(plain)
        assert int(again.iterations) == 4
        made.compile(again, "mse")
        made.fit(*data(), batch_size=2, verbose=0)
    assert int(again.iterations) == 8


def test_exclusions_from_weight_decay_are_kept() -> None:
    plain = keras.optimizers.AdamW(0.5, weight_decay=0.5)
    plain.exclude_from_weight_decay(var_names=["bias"])
    distributed = tfk.DistributedOptimizer(plain)
    kernel, bias = (tf.Variable([1.0], name=name) for name in ("kernel", "bias"))
    with fake_world():
        distributed.apply_gradients([(tf.zeros(1), kernel), (tf.zeros(1), bias)])
    np.testing.assert_array_equal(kernel, [0.75])
    np.testing.assert_array_equal(bias, [1.0])


@keras_3_only
def test_a_learning_rate_may_be_any_function() -> None:
    rate = 0.25
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(lambda: rate))
    variable = tf.Variable([1.0])
    with fake_world():
        optimizer.apply([tf.constant([1.0])], [variable])
    np.testing.assert_array_equal(variable, [0.75])


def test_schedules_survive() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(schedule))
    variable = tf.Variable([4.0])
    with fake_world():
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_array_equal(variable, [2.5])


def test_local_variables_keep_their_own_gradient() -> None:
    local, shared = tf.Variable([1.0]), tf.Variable([1.0])
    with fake_world():
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tfk.Sum)
        optimizer.register_local_var(local)
        optimizer.apply_gradients([(tf.constant([1.0]), local), (tf.constant([1.0]), shared)])
    assert (float(local[0]), float(shared[0])) == (0.5, -1.0)


@keras_3_only
def test_float8_scales_take_the_largest() -> None:
    scale = keras.Variable([1.0], name="scale")
    scale.overwrite_with_gradient = True
    weight = keras.Variable([1.0], name="weight")
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.apply([tf.constant([3.0]), tf.constant([1.0])], [scale, weight])
    assert ops.count("allreduce") == 1
    assert started(ops) == 1
    assert (float(scale.numpy()[0]), float(weight.numpy()[0])) == (3.0, 0.0)


def test_an_optimizer_bypassing_keras_gets_reduced_gradients() -> None:
    class Own(keras.optimizers.SGD):
        """Calls nothing of Keras that reduces."""

        if KERAS_3:

            def _backend_apply_gradients(self, grads: object, trainable_variables: object) -> None:
                self._backend_update_step(grads, trainable_variables, self.learning_rate)

        else:

            def apply_gradients(self, pairs: object, **_options: object) -> None:
                for gradient, variable in pairs:
                    variable.assign_sub(gradient)

    variable = tf.Variable([1.0])
    with fake_world() as ops:
        tfk.DistributedOptimizer(Own(1.0), op=tfk.Sum).apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_array_equal(variable, [-1.0])
    assert started(ops) == 1


def test_wrapping_twice_is_an_error() -> None:
    once = tfk.DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(InvalidArgumentError, match="already"):
        tfk.DistributedOptimizer(once)


def test_an_optimizer_of_something_else_is_refused() -> None:
    foreign = type("Foreign", (), {"apply_gradients": None})
    with pytest.raises(UnsupportedError, match="not an optimizer of Keras"):
        tfk.DistributedOptimizer(foreign())


@pytest.mark.parametrize("options", [{"backward_passes_per_step": 0}, {"process_set": [0]}])
def test_bad_arguments_are_named(options: dict) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        tfk.DistributedOptimizer(keras.optimizers.SGD(), **options)


@keras_3_only
def test_auto_jit_is_false_even_with_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    device = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    real = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [*real(kind), device])
    with fake_world() as ops:
        assert model(keras.optimizers.SGD()).jit_compile is True
        made = model(tfk.DistributedOptimizer(keras.optimizers.SGD()))
        assert made.jit_compile is False
        made.fit(*data(), verbose=0)
        scaled = model(keras.optimizers.LossScaleOptimizer(tfk.DistributedOptimizer(keras.optimizers.SGD())))
        assert scaled.jit_compile is False
    assert started(ops) == 1


@pytest.fixture
def without_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that XLA compiles cannot communicate."""
    monkeypatch.setattr(xla, "problem_of", lambda library: "there are no calls")


@pytest.mark.usefixtures("without_calls")
def test_explicit_jit_says_what_to_do() -> None:
    with fake_world(), pytest.raises(ConfigError, match=r"there are no calls. Compile with jit_compile=False"):
        model(tfk.DistributedOptimizer(keras.optimizers.SGD()), jit_compile=True)


def test_jit_is_refused_in_the_first_compile() -> None:
    """Python looks up ``model.compile`` before it makes the optimizer: a fresh interpreter shows what that leads to."""
    script = """
import tensorflow as tf
import tfcollective.keras as tfc
from fake_world import fake_world
from tfcollective.tensorflow import _xla as xla
xla.problem_of = lambda library: "there are no calls"
model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
with fake_world():
    model.compile(optimizer=tfc.DistributedOptimizer(tf.keras.optimizers.SGD()), loss="mse", jit_compile=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=within(120), check=False)
    assert ended.returncode == 1
    assert "ConfigError: jit_compile=True: XLA cannot compile" in ended.stderr


@pytest.mark.usefixtures("without_calls")
@pytest.mark.parametrize("inner", [False, True])
def test_functions_compiled_by_xla_are_refused(inner: bool) -> None:
    def reduce(value: tf.Tensor) -> tf.Tensor:
        return tfk.allreduce(value, name="jit")

    nested = tf.function(reduce) if inner else reduce
    refused = r"UnsupportedError: XLA cannot compile a function .* without jit_compile=True"
    with fake_world(), pytest.raises(Exception, match=refused):  # AutoGraph puts it into an error of its own
        tf.function(nested, jit_compile=True)(tf.constant(1.0))


def test_one_rank_communicates_nothing() -> None:
    with fake_world(size=1) as ops:
        made = model(tfk.DistributedOptimizer(keras.optimizers.Adam()), jit_compile=True)
        callbacks = [tfk.BroadcastGlobalVariablesCallback(0), tfk.MetricAverageCallback()]
        made.fit(*data(), verbose=0, callbacks=callbacks)
    assert ops.ran == []


def test_horovods_tensorflow_module_takes_optimizers_of_keras() -> None:
    import tfcollective.horovod.tensorflow as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(), op=hvd.Sum)
    assert optimizer._tfcollective.options.op == hvd.Sum


def test_our_tensorflow_module_names_the_one_for_keras() -> None:
    import tfcollective.tensorflow as tfc

    with pytest.raises(UnsupportedError, match=r"got Adam; for an optimizer of Keras use tfcollective\.keras\."):
        tfc.DistributedOptimizer(keras.optimizers.Adam())


def test_an_optimizer_is_given_by_name_or_configuration() -> None:
    with fake_world():
        for given in ("adam", keras.optimizers.serialize(keras.optimizers.Adam(0.5))):
            made = tfk.DistributedOptimizer(given, op=tfk.Sum)
            assert type(made).__name__ == "Adam"
            assert made._tfcollective.options.op == tfk.Sum
    assert float(tf.convert_to_tensor(made.learning_rate)) == 0.5


class Scaled(keras.optimizers.SGD):
    """With arguments that its configuration does not have."""

    def __init__(self, factor: float = 1.0, rule: object = None, **options: object) -> None:
        super().__init__(**options)
        self.factor = factor
        self.rule = rule
        self.squared = lambda: self.factor**2

    def update_step(self, gradient: object, variable: object, *rate: object) -> None:
        super().update_step(gradient * self.factor, variable, *rate)


@pytest.mark.parametrize("way", ["wrapped", "deepcopy", "pickle"])
@pytest.mark.parametrize("built", [False, True])
def test_attributes_outside_the_configuration_are_carried_over(way: str, built: bool) -> None:
    plain = Scaled(5.0, rule=np.square, learning_rate=1.0)
    plain.limits = {"low": [1, 2], "high": np.array([3.0])}
    plain.double = types.MethodType(lambda self: 2 * self.factor, plain)
    if built:
        plain.build([tf.Variable([1.0])])
    variable = tf.Variable([1.0])
    with fake_world():
        made = tfk.DistributedOptimizer(plain, op=tfk.Sum)
        if way == "deepcopy":
            made = copy.deepcopy(made)
        elif way == "pickle":
            del made.double  # is of this function, which pickle cannot name
            made = pickle.loads(pickle.dumps(made))
        made.apply_gradients([(tf.constant([1.0]), variable)])
        plain.factor = 1.0
    np.testing.assert_array_equal(variable, [-9.0])
    assert made.rule is np.square
    assert made.limits["low"] == [1, 2]
    assert made.squared() == 25.0  # of its own
    assert way == "pickle" or made.double() == 10.0


def test_a_class_not_made_from_configuration_fails() -> None:
    class Plain(Scaled):
        def __init__(self, learning_rate: float) -> None:
            super().__init__(learning_rate=learning_rate)

    with fake_world(), pytest.raises(UnsupportedError, match=r"no Plain can be made.*get_config"):
        tfk.DistributedOptimizer(Plain(0.1))


@pytest.mark.skipif(KERAS_3, reason="Keras 2's scaler")
@pytest.mark.parametrize("legacy", [False, True])
def test_a_loss_scaler_of_the_users_is_wrapped(legacy: bool) -> None:
    kind = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
    with fake_world():
        made = tfk.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(kind(0.1)))
    assert made.inner_optimizer._tfcollective is not None


@pytest.mark.skipif(KERAS_3, reason="Keras 2's older optimizers")
def test_gradient_transformers_are_carried_over_and_come_after() -> None:
    variable = tf.Variable([0.0])
    clipped = lambda pairs: [(tf.clip_by_norm(g, 1.0), v) for g, v in pairs]  # noqa: E731
    with fake_world():
        plain = keras.optimizers.legacy.SGD(1.0, gradient_transformers=[clipped])
        tfk.DistributedOptimizer(plain, op=tfk.Sum).apply_gradients([(tf.constant([1.0]), variable)])
    np.testing.assert_array_equal(variable, [-1.0])


@pytest.mark.parametrize("given", [None, keras.optimizers.Adam, 0.1, object()])
def test_what_is_no_optimizer_is_named(given: object) -> None:
    with fake_world(), pytest.raises(InvalidArgumentError, match=r"expected an optimizer or its name.*got"):
        tfk.DistributedOptimizer(given)


def test_a_tf_keras_optimizer_names_the_variable() -> None:
    kind = type("Adam", (), {"__module__": "tf_keras.src.optimizers.adam", "apply_gradients": None})
    with fake_world(), pytest.raises(UnsupportedError, match="TF_USE_LEGACY_KERAS=1"):
        tfk.DistributedOptimizer(kind())


@pytest.mark.skipif(KERAS_3, reason="Keras 2's older optimizers, which Estimators use")
def test_a_legacy_optimizer_is_wrapped_in_a_graph() -> None:
    with fake_world() as ops, tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=[1.0], use_resource=True)
        optimizer = keras.optimizers.legacy.SGD(0.5)
        assert optimizer.iterations is not None  # a tensor that has no value yet
        update = tfk.DistributedOptimizer(optimizer, op=tfk.Sum).apply_gradients([(tf.constant([1.0]), variable)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(update)
            np.testing.assert_array_equal(session.run(variable), [0.0])
    assert started(ops) == 1


def test_fit_in_a_v1_graph_is_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(UnsupportedError, match="disable_eager_execution"):
        tfk.BroadcastGlobalVariablesCallback(0).on_train_begin()


@pytest.mark.parametrize("devices", [1, 2])
def test_the_scope_of_a_strategy_is_refused(devices: int) -> None:
    """In a process of its own: logical devices are set before TensorFlow starts."""
    script = f"""
import tensorflow as tf
import tfcollective.keras as tfc
from fake_world import fake_world
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"][:{devices}])
with fake_world():
    for place in (strategy, tf.distribute.OneDeviceStrategy("CPU:0")):
        try:
            with place.scope():
                tfc.DistributedOptimizer(tf.keras.optimizers.SGD())
            print("taken")
        except NotImplementedError as error:
            print("refused:", error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=within(120), check=True)
    first, second = ended.stdout.splitlines()
    assert first.startswith("refused: DistributedOptimizer: not in the scope of tf.distribute.MirroredStrategy")
    assert "tfcollective run -np N" in first
    assert second == "taken"
