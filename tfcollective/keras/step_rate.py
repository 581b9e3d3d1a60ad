"""Tells the coordinator how fast training goes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import runtime
from tfcollective.keras.optimizers import optimizers_of
from tfcollective.runtime.step_rate import StepRate


class StepRateCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Has ``tfcollective status``, and MLflow where it is used, show the training step and the steps a second."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        del logs
        self._rate = StepRate(runtime.publish, lambda: _steps(self.model))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is done."""
        del batch, logs
        self._rate.step()

    def on_train_end(self, logs: Any = None) -> None:
        """The last word."""
        del logs
        self._rate.step(last=True)


def _steps(model: Any) -> int:
    """How many steps are done, by the optimizer that has done the most."""
    return max((int(optimizer.iterations) for optimizer in optimizers_of(model).values()), default=0)
