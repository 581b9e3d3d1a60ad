"""Layers compute with what they derive from their weights: it follows every assignment of weights by tfcollective."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeOps, fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective.keras.elastic import KerasState

pytestmark = pytest.mark.tensorflow
keras = tf.keras
X, Y = np.array([[48.0], [52.0]], np.float32), np.zeros((2, 1), np.float32)


class OtherRoot:
    """The root is another rank, whose normalization has a mean of 40; all else is as here."""

    def __init__(self, fake: FakeOps) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)

    def tfcollective_broadcast(self, tensor: Any, **attributes: Any) -> Any:
        values = np.asarray(tensor)
        return tf.constant(np.where(values == 50.0, np.float32(40.0), values), tensor.dtype)


def model(compiled: bool = True) -> tuple[Any, Any]:
    norm = keras.layers.Normalization()
    norm.adapt(X)
    made = keras.Sequential([keras.layers.Input((1,)), norm, keras.layers.Dense(1, kernel_initializer="ones")])
    if compiled:
        made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        assert made.predict(X, verbose=0).ravel().tolist() == [-1.0, 1.0]  # and the mean is in its trace
    return made, norm


def fit(made: Any, *callbacks: Any) -> None:
    made.fit(X, Y, verbose=0, callbacks=list(callbacks))


def backup(made: Any, directory: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(made, tfk.callbacks.BackupAndRestore(directory), Stop())
    fit(made, tfk.callbacks.BackupAndRestore(directory, delete_checkpoint=False))


@pytest.mark.parametrize(
    "assign",
    [
        lambda made, _: fit(made, tfk.BroadcastGlobalVariablesCallback(0)),
        backup,
        lambda made, _: KerasState(made).take(0),
    ],
    ids=["broadcast", "backup", "elastic"],
)
def test_what_a_model_computes_follows_its_weights(assign: Callable[[Any, Path], None], tmp_path: Path) -> None:
    with fake_world(wrapped=OtherRoot):
        made, norm = model()
        assign(made, tmp_path)
        assert np.asarray(norm.mean).ravel().tolist() == [40.0]
        assert made.predict(X, verbose=0).ravel().tolist() == [4.0, 6.0]


def test_it_follows_a_broadcast_of_variables_alone() -> None:
    with fake_world(wrapped=OtherRoot):
        made, norm = model(compiled=False)
        other = keras.layers.Normalization()
        other.adapt(X)
        tfc.broadcast_variables(made.variables, root_rank=0)
        assert made(X).numpy().ravel().tolist() == [4.0, 6.0]
        assert np.asarray(norm.mean).ravel().tolist() == [40.0]
        assert np.asarray(other.mean).ravel().tolist() == [50.0]


def test_a_late_broadcast_reaches_the_second_step() -> None:
    with fake_world(wrapped=OtherRoot):
        _, norm = model()
        flat = keras.layers.Reshape((1,))  # Keras 2 does not know the shape that comes from the layer before it
        made = keras.Sequential([norm, flat, keras.layers.Dense(1, kernel_initializer="ones")])
        made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        is_built = made.built  # as Keras 2 says as soon as it knows a shape: the broadcast comes before the first step
        callback = tfk.BroadcastGlobalVariablesCallback(0)
        history = made.fit(X, Y, batch_size=1, shuffle=False, verbose=0, callbacks=[callback])
    assert history.history["loss"] == [((16.0 if is_built else 1.0) + 36.0) / 2]
