"""What ``tfcollective status`` is told of ``fit``."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective import _runtime as runtime

pytestmark = pytest.mark.tensorflow
X, Y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)


def published(monkeypatch: pytest.MonkeyPatch, rank: int, callback: object) -> list[dict[str, object]]:
    """What rank `rank` of two publishes in 3 epochs of 4 steps."""
    said: list[dict[str, object]] = []
    monkeypatch.setattr(runtime, "publish", said.append)
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    with fake_world(size=1 if isinstance(callback, tfk.Elastic) else 2, rank=rank):
        model.compile(tfk.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")
        model.fit(X, Y, batch_size=2, epochs=3, verbose=0, shuffle=False, callbacks=[callback])
    return said


@pytest.mark.parametrize("make", [lambda: tfk.BroadcastGlobalVariablesCallback(0), tfk.Elastic])
def test_rank_0_publishes_step_epoch_rate_and_loss(monkeypatch, make) -> None:
    last = published(monkeypatch, 0, make())[-1]
    assert {name: last[name] for name in ("step", "steps", "epoch", "epochs")} == {
        "step": 12,
        "steps": 12,
        "epoch": 3,
        "epochs": 3,
    }
    assert last["steps_per_second"] > 0
    assert last["loss"] > 0


def test_other_ranks_publish_nothing(monkeypatch) -> None:
    assert published(monkeypatch, 1, tfk.BroadcastGlobalVariablesCallback(0)) == []
