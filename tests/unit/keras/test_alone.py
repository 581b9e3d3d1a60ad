"""Training that reduces nothing is an error; training that does, in whatever way, is not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime
from tfcollective._base.errors import StateError, UnsupportedError
from tfcollective._base.tasks import TaskKey
from tfcollective.keras import _alone as alone
from tfcollective.tensorflow import _reductions as reductions

pytestmark = pytest.mark.tensorflow
keras = tf.keras
SGD = keras.optimizers.SGD
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
keras_2_only = pytest.mark.skipif(KERAS_3, reason="Keras 3 has no such thing")
X, Y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
ALONE_ERROR = StateError if KERAS_3 else Exception  # AutoGraph of TensorFlow 2.15 puts it into an error of its own
ALONE = "each of the 2 ranks trains a model of its own"


@pytest.fixture(autouse=True)
def _nothing_is_noted_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reductions, "_notes", reductions._Notes())
    yield


def kinds() -> list:
    return [SGD] if KERAS_3 else [SGD, keras.optimizers.legacy.SGD]


def fit(optimizer: object, **options: object) -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", **options)
    made.fit(X, Y, batch_size=4, verbose=0)
    return made


def step(optimizer: object, variable: object = None, tape: object = None, **options: object) -> None:
    variable = tf.Variable([1.0]) if variable is None else variable
    with tf.GradientTape() as own:
        loss = tf.reduce_sum(variable)
    optimizer.apply_gradients([((tape or (lambda t: t))(own).gradient(loss, variable), variable)], **options)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("eager", [False, True])
def test_fit_with_an_optimizer_that_was_never_wrapped(kind: type, eager: bool) -> None:
    with fake_world(rank=1), pytest.raises(ALONE_ERROR, match=f"SGD.*{ALONE}.*TFCOLLECTIVE_LOCAL_TRAINING=1"):
        fit(kind(0.1), run_eagerly=eager)


@pytest.mark.parametrize("traced", [False, True])
def test_a_custom_loop_without_a_wrapped_optimizer(traced: bool) -> None:
    variable = tf.Variable([1.0])
    optimizer = SGD(0.1)
    loop = lambda: step(optimizer, variable)  # noqa: E731
    with fake_world(), pytest.raises(Exception, match=ALONE):
        (tf.function(loop) if traced else loop)()


@pytest.mark.parametrize("world", [{"size": 1}, {"local_training": True}])
def test_one_rank_or_local_training_raises_nothing(world: dict) -> None:
    with fake_world(**world):
        fit(SGD(0.1))
        step(SGD(0.1))


def test_a_process_outside_of_a_job_trains_alone() -> None:
    fit(SGD(0.1))


def test_nothing_to_train_is_no_training() -> None:
    with fake_world():
        made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, trainable=False)])
        made.compile(SGD(0.1), "mse")
        made.fit(X, Y, verbose=0)
        made.evaluate(X, Y, verbose=0)


def test_reductions_of_the_program_itself_are_seen() -> None:
    with fake_world():
        step(SGD(0.1), tape=tfc.DistributedGradientTape)
        step(SGD(0.1))  # a function that is traced already would run its tape without a note


def test_a_reduction_before_fit_does_not_count() -> None:
    with fake_world():
        total = tfc.allreduce(tf.constant(8.0))
        step(SGD(0.1))
        with pytest.raises(ALONE_ERROR, match=ALONE):
            fit(SGD(0.1))
    assert float(total) == 8.0


def test_a_tape_does_not_count_in_fit() -> None:
    with fake_world():
        step(SGD(0.1), tape=tfc.DistributedGradientTape)
        with pytest.raises(ALONE_ERROR, match=ALONE):
            fit(SGD(0.1))
        step(SGD(0.1))  # after fit it counts again: a traced function may run one


def test_agreeing_on_loss_scales_reduces_no_gradients() -> None:
    kind = getattr(keras.optimizers, "LossScaleOptimizer", keras.mixed_precision.LossScaleOptimizer)
    with fake_world():
        fit(tfk.DistributedOptimizer(kind(SGD(0.1))))
        with pytest.raises(ALONE_ERROR, match=ALONE):
            fit(SGD(0.1))


def test_reducing_before_train_on_batch_is_ignored() -> None:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile(SGD(0.1), "mse")
    with fake_world():
        tfc.allreduce(tf.constant(8.0))
        with pytest.raises(ALONE_ERROR, match=ALONE):
            made.train_on_batch(X, Y)


@pytest.mark.parametrize("change", [lambda g: g, lambda g: tf.clip_by_value(g, -1.0, 1.0) / 2.0], ids=["", "clipped"])
def test_reducing_before_a_traced_step_is_ignored(change: object) -> None:
    variable, optimizer = tf.Variable([1.0]), SGD(0.1)

    @tf.function
    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable**2)
        optimizer.apply_gradients([(change(tape.gradient(loss, variable)), variable)])

    with fake_world():
        tfc.allreduce(tf.constant(8.0))
        with pytest.raises(Exception, match=ALONE):
            train()


def test_a_traced_step_accepts_reduced_gradients() -> None:
    variable, optimizer = tf.Variable([1.0]), SGD(0.1)

    @tf.function
    def update(gradient: object) -> None:
        with tf.GradientTape() as tape:
            penalty = tf.reduce_sum(variable**2)
        optimizer.apply_gradients([(gradient + 0.1 * tape.gradient(penalty, variable), variable)])

    with fake_world():
        update(tfc.allreduce(tf.constant([1.0])))


GENERATOR = "no DistributedGradientTape has taken the gradients with which an optimizer updates generator"


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("first", ["generator", "critic"])
@pytest.mark.parametrize("both", [False, True])
def test_one_of_two_tapes_is_not_wrapped(
    traced: bool, first: str, both: bool, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {name: tf.Variable([1.0], name=name) for name in ("generator", "critic")}
    optimizers = {name: SGD(0.1) for name in variables}
    order = sorted(variables, key=lambda name: name != first)

    def train() -> None:
        for name in order:
            tape = tfc.DistributedGradientTape if both or name == "critic" else None
            step(optimizers[name], variables[name], tape=tape)

    loop = tf.function(train) if traced else train
    with fake_world():
        if first == "generator" and not both:  # nothing at all had been reduced
            with pytest.raises(Exception, match=ALONE):
                loop()
            return
        loop()
        loop()
    assert caplog.text.count(GENERATOR) == (0 if both else 1)


def test_a_tape_of_other_tensors_warns_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its gradients may lead to any variable's."""
    critic, generator = tf.Variable([1.0]), tf.Variable([1.0])
    with fake_world():
        with tf.GradientTape() as own:
            image = tf.constant([1.0])
            own.watch(image)
            loss = tf.reduce_sum(image * critic)
        _, gradient = tfc.DistributedGradientTape(own).gradient(loss, [image, critic])
        SGD(0.1).apply_gradients([(gradient, critic)])
        step(SGD(0.1), generator)
    assert not caplog.text


@pytest.mark.parametrize("traced", [False, True])
def test_a_loop_that_reduces_goes_on_after_fit(traced: bool) -> None:
    """Its traced function reduces without a note."""
    variable, optimizer = tf.Variable([1.0]), SGD(0.1)
    reduced = lambda: tfc.allreduce(tf.constant([1.0]))  # noqa: E731
    gradient = tf.function(reduced) if traced else reduced
    with fake_world():
        result = gradient()
        optimizer.apply_gradients([(result, variable)])
        fit(tfk.DistributedOptimizer(SGD(0.1)))
        optimizer.apply_gradients([(gradient() if traced else result, variable)])


class Halves(keras.Model):
    """Two layers, each with an optimizer of its own."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__()
        self.layers_of = [keras.layers.Dense(1), keras.layers.Dense(1)]
        self.first, self.second = first, second

    def train_step(self, data: tuple) -> dict:
        for layer, optimizer in zip(self.layers_of, (self.first, self.second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(data[0]) ** 2)
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def call(self, x: object) -> object:
        return self.layers_of[1](x) + self.layers_of[0](x)


@pytest.mark.parametrize("both", [False, True])
def test_one_of_two_optimizers_is_not_wrapped(both: bool) -> None:
    def train() -> None:
        second = SGD(0.1)
        made = Halves(tfk.DistributedOptimizer(SGD(0.1)), tfk.DistributedOptimizer(second) if both else second)
        made.compile()
        made.fit(X, Y, batch_size=4, verbose=0)

    with fake_world():
        if both:
            train()
            return
        with pytest.raises(ALONE_ERROR, match=ALONE):
            train()


# ---- optimizers that hold others ------------------------------------------------------------------------------------


def outer_kind(base: type) -> type:
    class Outer(base):
        """Uses only the update of the optimizer inside."""

        def __init__(self, inner: object, name: str = "outer") -> None:
            super().__init__(**({"learning_rate": 0.1} if KERAS_3 else {}), name=name)
            self._optimizer = inner

        def build(self, variables: object) -> None:
            super().build(variables)
            self._optimizer.build(variables)

        def update_step(self, gradient: object, variable: object, *rate: object) -> None:
            self._optimizer.update_step(gradient, variable, *rate)

        def _create_slots(self, variables: object) -> None:
            self._optimizer._create_slots(variables)

        def _create_hypers(self) -> None:
            self._optimizer._create_hypers()

        def _prepare(self, variables: object) -> object:
            return self._optimizer._prepare(variables)

        def _resource_apply_dense(self, gradient: object, variable: object, **options: object) -> object:
            return self._optimizer._resource_apply_dense(gradient, variable, **options)

    return Outer


def outer_bases() -> list:
    return [keras.optimizers.Optimizer if KERAS_3 else keras.optimizers.legacy.Optimizer]


@pytest.mark.parametrize("base", outer_bases())
@pytest.mark.parametrize("local_training", [False, True])
def test_using_only_a_distributed_update_is_refused(base: type, local_training: bool) -> None:
    kind = SGD if KERAS_3 else keras.optimizers.legacy.SGD
    refused = r"without its apply_gradients.*DistributedOptimizer\(Outer\(SGD"
    with fake_world(local_training=local_training), pytest.raises(Exception, match=refused):
        fit(outer_kind(base)(tfk.DistributedOptimizer(kind(0.1))))


class Parts(SGD):
    """Gives each half of the gradients to another optimizer."""

    def __init__(self, parts: tuple = (), name: str = "parts", **_options: object) -> None:
        super().__init__(0.1, name=name)
        self.parts = list(parts)

    def apply_gradients(self, grads_and_vars: object, *_args: object, **_options: object) -> None:
        for part, pair in zip(self.parts, grads_and_vars, strict=True):
            part.apply_gradients([pair])

    def get_config(self) -> dict:
        return {"parts": self.parts}


def test_custom_apply_gradients_passes_on_reduced_gradients() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(Parts((SGD(0.5), SGD(1.0))), op=tfk.Sum)
        optimizer.apply_gradients([(tf.constant([1.0]), variable) for variable in variables])
    assert [float(variable[0]) for variable in variables] == [0.0, -1.0]
    assert ops.count("start") == 1


def test_a_plain_optimizer_around_distributed_ones_reduces() -> None:
    with fake_world() as ops:
        optimizer = Parts((tfk.DistributedOptimizer(SGD(0.5)), tfk.DistributedOptimizer(SGD(1.0))))
        optimizer.apply_gradients([(tf.constant([1.0]), tf.Variable([1.0])) for _ in optimizer.parts])
    assert ops.count("start") == 2


# ---- arguments and methods of the user's own ------------------------------------------------------------------------


@keras_2_only
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("flag", [{"experimental_aggregate_gradients": False}, {"skip_gradients_aggregation": True}])
def test_arguments_that_keep_an_optimizer_from_reducing(kind: type, flag: dict) -> None:
    if "legacy" in kind.__module__ and "skip_gradients_aggregation" in flag:
        pytest.skip("legacy optimizers do not know it")
    with fake_world(), pytest.raises(UnsupportedError, match=next(iter(flag))):
        step(tfk.DistributedOptimizer(kind(0.1)), **flag)
    with fake_world(size=1):
        step(tfk.DistributedOptimizer(kind(0.1)), **flag)


@keras_2_only
def test_gradients_that_the_optimizer_has_aggregated_before() -> None:
    """Keras's own way to do something in between."""
    variable = tf.Variable([1.0])
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(SGD(1.0), op=tfk.Sum)
        pairs = optimizer.aggregate_gradients([(tf.constant([1.0]), variable)])
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        with pytest.raises(UnsupportedError, match="skip_gradients_aggregation"):
            optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    np.testing.assert_array_equal(variable, [-1.0])
    assert ops.count("start") == 1


def clipping(kind: type, method: str) -> type:
    """The class with a method of its own that clips to norm 1."""

    def clipped(gradients: object) -> list:
        return list(tf.clip_by_global_norm(list(gradients), 1.0)[0])

    class Clipping(kind):
        pass

    def apply_gradients(self: object, pairs: object, *args: object, **options: object) -> object:
        gradients, variables = zip(*pairs, strict=True)
        done = zip(clipped(gradients), variables, strict=True)
        return super(Clipping, self).apply_gradients(done, *args, **options)

    def apply(self: object, gradients: object, variables: object = None) -> object:
        return super(Clipping, self).apply(clipped(gradients), variables)

    def backend(self: object, gradients: object, variables: object) -> object:
        return super(Clipping, self)._backend_apply_gradients(clipped(gradients), variables)

    functions = {"apply_gradients": apply_gradients, "apply": apply, "_backend_apply_gradients": backend}
    setattr(Clipping, method, functions[method])
    return Clipping


METHODS = ("apply_gradients", "apply", "_backend_apply_gradients") if KERAS_3 else ("apply_gradients",)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("traced", [False, True])
def test_a_class_that_clips_is_given_reduced_gradients(kind: type, method: str, traced: bool) -> None:
    variable = tf.Variable([0.0])
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(clipping(kind, method)(1.0), op=tfk.Sum)

        def update() -> None:
            optimizer.apply_gradients([(tf.constant([2.0]), variable)])

        (tf.function(update) if traced else update)()
    np.testing.assert_array_equal(variable, [-1.0])  # clipped first it would be -2
    assert ops.count("start") == 1


@keras_2_only
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__module__)
def test_a_class_changing_gradients_early_is_refused(kind: type) -> None:
    method = "_compute_gradients" if "legacy" in kind.__module__ else "compute_gradients"
    early = type("Early", (kind,), {method: lambda self, *args, **options: []})
    with fake_world(), pytest.raises(UnsupportedError, match=rf"Early has a method {method}.*apply_gradients"):
        tfk.DistributedOptimizer(early(0.1))


@pytest.mark.parametrize(
    ("elastic", "trains", "counts"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_a_step_before_elastic_run_is_local(
    monkeypatch: pytest.MonkeyPatch, elastic: bool, trains: bool, counts: bool
) -> None:
    for name, value in {"is_initialized": True, "size": 3, "current": SimpleNamespace(trains=trains)}.items():
        monkeypatch.setattr(runtime, name, lambda value=value: value)
    monkeypatch.setattr(runtime, "task", lambda: TaskKey("worker", 0))
    monkeypatch.setattr(runtime, "settings", lambda: SimpleNamespace(elastic=elastic))
    assert alone._is_one_of_several() is counts


# ---- a tape and a distributed optimizer ------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("clipped", [False, True])
def test_gradients_are_not_reduced_twice(traced: bool, clipped: bool) -> None:
    if clipped and not traced:
        pytest.skip("eager tensors do not tell what they were computed of")
    variable = tf.Variable([1.0])
    optimizer = tfk.DistributedOptimizer(SGD(0.1))

    def update() -> None:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable**2)
        gradients = tape.gradient(loss, [variable])
        if clipped:
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, [variable]))

    with fake_world(), pytest.raises(Exception, match="reduced twice"):
        (tf.function(update) if traced else update)()
    with fake_world(size=1):
        (tf.function(update) if traced else update)()


@pytest.mark.parametrize("traced", [False, True])
def test_a_second_gradient_may_use_reduced_ones(traced: bool) -> None:
    """As that of a sharpness-aware step, at weights that the reduced gradient has moved."""
    variable = tf.Variable([1.0])
    optimizer = tfk.DistributedOptimizer(SGD(0.1))

    def update() -> None:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable**2)
        step = tape.gradient(loss, variable)
        variable.assign_add(step)
        with tf.GradientTape() as second:
            loss = tf.reduce_sum(variable**2)
        gradient = second.gradient(loss, variable)
        variable.assign_sub(step)
        optimizer.apply_gradients([(gradient, variable)])

    with fake_world() as ops:
        (tf.function(update) if traced else update)()
    assert ops.count("start") == 2
