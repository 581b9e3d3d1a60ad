"""Horovod's module of this name."""

from tfcollective.keras import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
