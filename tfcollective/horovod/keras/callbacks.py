"""Horovod's module of this name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfcollective.keras import callbacks as _callbacks
from tfcollective.keras.callbacks import (
    BackupAndRestore,
    BestModelCheckpoint,
    Elastic,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)

__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Elastic",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariablesCallback):
    """See ``tfcollective.keras.BroadcastGlobalVariablesCallback``; `device` is Horovod's and without effect."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        del device
        super().__init__(root_rank, local_variables=local_variables)


class MetricAverageCallback(_callbacks.MetricAverageCallback):
    """See ``tfcollective.keras.MetricAverageCallback``; `device` is Horovod's and without effect."""

    def __init__(self, device: str = "") -> None:
        del device
        super().__init__()
