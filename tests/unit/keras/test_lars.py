"""LARS: its updates are those of the paper, and it is an optimizer of Keras like others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfcollective.keras as tfc

RATE, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.01, 0.02


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    tfc.init()
    yield
    tfc.shutdown()


def expected(weights: list[Any], gradients: list[list[Any]], nesterov: bool) -> list[Any]:
    """Returns the weights after the updates, computed by NumPy."""
    values = [w.copy() for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    for step in gradients:
        for i, g in enumerate(step):
            w = values[i]
            if w.ndim > 1:
                norm, of_g = np.linalg.norm(w), np.linalg.norm(g)
                g = (g + DECAY * w) * TRUST * norm / (of_g + DECAY * norm + 1e-9)
            velocities[i] = MOMENTUM * velocities[i] + RATE * g
            values[i] = w - (MOMENTUM * velocities[i] + RATE * g if nesterov else velocities[i])
    return values


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("distributed", [False, True])
def test_updates_are_those_of_the_paper(nesterov: bool, distributed: bool) -> None:
    random = np.random.default_rng(1)
    weights = [random.normal(size=shape) for shape in ((3, 4), (4,))]
    gradients = [[random.normal(size=w.shape) for w in weights] for _ in range(3)]
    optimizer: Any = tfc.LARS(RATE, MOMENTUM, DECAY, TRUST, nesterov=nesterov)
    if distributed:
        optimizer = tfc.DistributedOptimizer(optimizer)
    variables = [tf.Variable(w, dtype="float32") for w in weights]
    for step in gradients:
        optimizer.apply_gradients([(tf.constant(g, "float32"), v) for g, v in zip(step, variables, strict=True)])
    for variable, value in zip(variables, expected(weights, gradients, nesterov), strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-6)


def test_saved_models_go_on_with_it(tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
    optimizer = tfc.DistributedOptimizer(tfc.LARS(RATE, weight_decay=DECAY, exclude=["embed"], use_ema=True))
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = tfc.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    model.fit(x, y, verbose=0)
    again.fit(x, y, verbose=0)
    for value, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6)
