"""tfcollective for Keras 3 and Keras 2: distributed optimizer and callbacks, and the collectives.

Options are given by keyword. Horovod's signatures are in :mod:`tfcollective.horovod.keras`.
"""

from __future__ import annotations

import tensorflow as tf

from tfcollective.keras import _adapter as adapter
from tfcollective.keras import callbacks, elastic
from tfcollective.keras._experiment import KerasExperiment
from tfcollective.keras._global_mean import GlobalMeanLoss
from tfcollective.keras._lars import LARS
from tfcollective.keras._model_io import load_model
from tfcollective.keras._noise_scale import GradientNoiseScale
from tfcollective.keras._normalization import SyncBatchNormalization
from tfcollective.keras._optimizer import DistributedOptimizer
from tfcollective.keras._parallel.start import start_if_asked
from tfcollective.keras._parallel.together import evaluate, predict
from tfcollective.keras.callbacks import (
    BackupAndRestore,
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    Elastic,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from tfcollective.tensorflow._common import *  # noqa: F403
from tfcollective.tensorflow._common import __all__ as __all__  # type: ignore[attr-defined]
from tfcollective.tensorflow._functions import allreduce, broadcast
from tfcollective.tensorflow._replica_check import ReplicaCheck
from tfcollective.tensorflow._rows import allgather, reducescatter
from tfcollective.tensorflow._variables import broadcast_global_variables

__all__ += (
    "LARS",
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "Elastic",
    "GlobalMeanLoss",
    "GradientNoiseScale",
    "KerasExperiment",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ReplicaCheck",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "evaluate",
    "load_model",
    "predict",
    "reducescatter",
)

adapter.install(tf.keras)
start_if_asked()
