"""Callbacks for ``fit``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._runtime import ProcessSet
from tfcollective.keras._backup import BackupAndRestore
from tfcollective.keras._elastic_fit import Elastic
from tfcollective.keras._learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback, MetricAverageCallback

__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Elastic",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # Keras is not typed
    """``ModelCheckpoint`` that saves the best model only, and on the first rank only.

    Put ``MetricAverageCallback`` before it, so that this rank judges by all ranks' data.

    Args:
        monitor: what is compared.
        verbose: 1: say what is done.
        save_weights_only: save weights instead of the model.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.
        filepath: where to; may be set later as an attribute, but before training starts.
        process_set: the first rank of which saves; all ranks if None.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
        *,
        process_set: ProcessSet | None = None,
    ) -> None:
        super().__init__(
            filepath or ("best.weights.h5" if save_weights_only else "best.keras"),  # Keras looks at the ending
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = filepath
        self._process_set = process_set

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that there is a path."""
        if self.filepath is None:
            raise InvalidArgumentError("BestModelCheckpoint: set its filepath before training starts")
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if runtime.members(self._process_set, outside=True).rank == 0:
            super()._save_model(*args, **kwargs)
