"""What of a state outlasts a change of the world, and which errors are one; on any TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tfcollective
import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective.elastic import HorovodInternalError, loop
from tfcollective.errors import PeerLostError

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


def test_of_a_step_in_a_reset_callback_the_learning_rate_stays() -> None:
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


def test_a_schedule_of_the_learning_rate_goes_by_the_steps() -> None:
    model = compiled(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5))
    changed(tfk.elastic.KerasState(model))
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert float(tf.convert_to_tensor(model.optimizer.lr)) <= 0.5


def test_what_a_reset_callback_assigns_to_variables_of_a_loop_stays() -> None:
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
        self._saved = tfc.broadcast_object(self._saved, 0)
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
def test_an_error_is_a_change_only_if_a_rank_was_lost(error, elastic, lost, expected, monkeypatch) -> None:
    monkeypatch.setattr(loop.runtime, "settings", lambda: SimpleNamespace(elastic=elastic))
    monkeypatch.setattr(loop.runtime, "ended_by_peer", lambda: PeerLostError("gone", peer=1) if lost else None)
    assert loop._is_change(error) is expected
