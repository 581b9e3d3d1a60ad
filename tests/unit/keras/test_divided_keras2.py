"""What Keras 2's trainer does not divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._parallel import mode

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(hasattr(tf.keras, "distribution"), reason="Keras 3 has none of these arguments"),
]
ROWS = np.ones((4, 2), np.float32)


@pytest.fixture(autouse=True)
def _divided() -> Iterator[None]:
    with fake_world(2), mode.divided():
        yield


def batches() -> Iterator[Any]:
    while True:
        yield ROWS, ROWS[:, :1]


def compiled(**options: Any) -> Any:
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


def test_a_generator_of_several_threads() -> None:
    with pytest.raises(UnsupportedError, match="the batches of a generator have another order on each rank"):
        compiled().fit(batches(), steps_per_epoch=2, workers=2)


def test_steps_that_keras_chooses() -> None:
    with pytest.raises(UnsupportedError, match="steps_per_execution='auto'"):
        compiled(steps_per_execution="auto").fit(ROWS, ROWS[:, :1])


def test_metrics_of_several_single_batches() -> None:
    with pytest.raises(UnsupportedError, match="reset_metrics=False"):
        compiled().train_on_batch(ROWS, ROWS[:, :1], reset_metrics=False)


def test_a_loss_of_each_row() -> None:
    with pytest.raises(UnsupportedError, match="loss mean_squared_error: with reduction='none'"):
        compiled(loss=tf.keras.losses.MeanSquaredError(reduction="none")).fit(ROWS, ROWS[:, :1])
