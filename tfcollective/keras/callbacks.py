"""Callbacks for ``fit``."""

from __future__ import annotations

from tfcollective.keras.backup import BackupAndRestore
from tfcollective.keras.checkpoint import BestModelCheckpoint
from tfcollective.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from tfcollective.keras.synchronisation import BroadcastGlobalVariablesCallback, MetricAverageCallback

__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
