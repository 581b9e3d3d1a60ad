"""What of a state outlasts a change of the world, and which errors are one; on any TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective
import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective._base.errors import PeerLostError
from tfcollective.elastic import HorovodInternalError
from tfcollective.elastic import _loop as loop

pytestmark = pytest.mark.tensorflow
keras = tf.keras


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Of one rank, from which it syncs."""
    tfcollective.init()
    yield
    tfcollective.shutdown()


def compiled(rate: object = 0.5) -> object:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
    return model


def changed(state: tfc.elastic.State, *callbacks: object) -> None:
    """The world has changed: the reset callbacks run, then the ranks sync."""
    state.register_reset_callbacks(callbacks)
    state.on_reset()
    state.sync()


def rate_of(model: object) -> float:
    return float(tf.convert_to_tensor(model.optimizer.learning_rate))


def test_a_reset_callback_keeps_only_the_rate() -> None:
    model = compiled()
    state = tfk.elastic.KerasState(model, epoch=3)
    before = model.get_weights()
    ran = []

    def reset() -> None:
        keras.backend.set_value(model.optimizer.lr, 0.25)
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
        ran.append(any((now != then).any() for now, then in zip(model.get_weights(), before, strict=True)))
        state.epoch = 9

    changed(state, reset)
    assert ran == [True]
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert (rate_of(model), int(tf.convert_to_tensor(model.optimizer.iterations)), state.epoch) == (0.25, 0, 3)
    model.optimizer.lr = 0.125
    assert rate_of(model) == 0.125
    state.restore()
    assert rate_of(model) == 0.25


def test_a_rate_schedule_follows_the_steps() -> None:
    model = compiled(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5))
    changed(tfk.elastic.KerasState(model))
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert float(tf.convert_to_tensor(model.optimizer.lr)) <= 0.5


def test_a_reset_callback_may_assign_loop_variables() -> None:
    rate, weight = tf.Variable(0.5), tf.Variable([1.0, 2.0])
    state = tfc.elastic.TensorFlowState([rate, weight])
    changed(state, lambda: rate.assign(0.25))
    assert float(rate) == 0.25
    np.testing.assert_array_equal(weight, [1.0, 2.0])


class Ported(tfc.elastic.State):
    """A state as Horovod's pages have one written: with a ``sync`` of its own."""

    def __init__(self, value: int) -> None:
        super().__init__(bcast_object=tfc.broadcast_object, get_rank=tfc.rank)
        self.value = self._saved = value

    def save(self) -> None:
        self._saved = self.value

    def restore(self) -> None:
        self.value = self._saved

    def sync(self) -> None:
        self._saved = tfc.broadcast_object(self._saved, root_rank=0)
        self.restore()


def test_a_state_that_was_written_for_horovod() -> None:
    state = Ported(1)
    state.value = 2
    state.commit()
    state.value = 3
    assert tfc.elastic.run(lambda state: state.value)(state) == 2


@pytest.mark.parametrize(
    ("error", "elastic", "lost", "expected"),
    [
        (tf.errors.AbortedError(None, None, "a rank is gone"), True, True, True),
        (tf.errors.UnknownError(None, None, "PeerLostError: in a py_function"), True, True, True),
        (tf.errors.UnknownError(None, None, "PeerLostError: in a py_function"), True, False, False),
        (tf.errors.UnknownError(None, None, "PeerLostError: in a py_function"), False, True, False),
        (HorovodInternalError(), True, False, True),
        (HorovodInternalError(), False, False, False),
        (ValueError("the data is rotten"), True, True, False),
    ],
)
def test_errors_are_changes_only_after_a_loss(error, elastic, lost, expected, monkeypatch) -> None:
    monkeypatch.setattr(loop.runtime, "settings", lambda: SimpleNamespace(elastic=elastic))
    ended = PeerLostError("gone", peer=1) if lost else None
    monkeypatch.setattr(loop.runtime, "current", lambda: SimpleNamespace(ended_by_peer=lambda: ended))
    assert loop._is_change(error) is expected


class Uncopyable:
    """A value that a commit fails on."""

    def __deepcopy__(self, memo: object) -> object:
        raise ValueError("cannot be copied")


def test_a_failed_commit_keeps_the_last_one() -> None:
    weight, counter = tf.Variable([1.0, 2.0]), tf.Variable(1)
    state = tfc.elastic.TensorFlowState([weight, counter], step=1, more=[1])
    weight.assign([5.0, 6.0])
    counter.assign(2)
    state.step, state.more = 2, Uncopyable()
    with pytest.raises(ValueError, match="cannot be copied"):
        state.commit()
    state.restore()
    np.testing.assert_array_equal(weight, [1.0, 2.0])
    assert (int(counter), state.step, state.more) == (1, 1, [1])


def test_a_commit_is_of_its_moment() -> None:
    weight = tf.Variable([1.0, 2.0])
    state = tfc.elastic.TensorFlowState([weight])
    for value in (3.0, 4.0):
        weight.assign([value, value])
        state.commit()
        weight.assign_add([1.0, 1.0])  # in place
        weight.scatter_nd_update([[0]], [9.0])
        state.restore()
        np.testing.assert_array_equal(weight, [value, value])


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "decay": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(amsgrad=True),
    "ema": lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
    **{name: lambda name=name: keras.optimizers.get(name) for name in ("rmsprop", "adagrad", "adadelta", "nadam")},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("eager", [False, True])
def test_an_elastic_job_updates_with_the_same_bits(optimizer: str, eager: bool) -> None:
    """Though its updates are not in place, so that what is committed need not be copied."""

    def trained() -> list[np.ndarray]:
        made = OPTIMIZERS[optimizer]()
        weights = [tf.Variable(tf.random.stateless_normal((8, 3), (1, 2))), tf.Variable(tf.ones((3,)))]
        made.build(weights)

        def step(number: object) -> None:
            gradients = [tf.random.stateless_normal(weight.shape, (number, 5)) for weight in weights]
            made.apply_gradients(zip(gradients, weights, strict=True))

        traced = step if eager else tf.function(step)
        for number in range(5):
            traced(tf.constant(number))
        return [weight.numpy() for weight in weights]

    expected = trained()
    with fake_world(1, elastic=True):
        found = trained()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def updates_in_place(optimizer: str) -> set[str]:
    """The operations of a step that change a variable where it is."""
    made, weight = OPTIMIZERS[optimizer](), tf.Variable(tf.ones((3,)))
    made.build([weight])
    step = tf.function(lambda: made.apply_gradients([(tf.ones((3,)), weight)]))
    kinds = {node.type for node in step.get_concrete_function().graph.get_operations()}
    return {kind for kind in kinds if "Assign" in kind} - {"AssignVariableOp"}


@pytest.mark.parametrize("optimizer", ["sgd", "decay", "adam", "rmsprop"])
def test_elastic_jobs_do_not_update_in_place(optimizer: str) -> None:
    assert updates_in_place(optimizer)
    with fake_world(1, elastic=True):
        assert not updates_in_place(optimizer)


def test_an_update_outside_optimizers_stays_in_place() -> None:
    with fake_world(1, elastic=True):
        weight = tf.Variable([1.0, 2.0])
        graph = tf.function(lambda: weight.assign_add([1.0, 1.0])).get_concrete_function().graph
        assert "AssignAddVariableOp" in {one.type for one in graph.get_operations()}
