"""Horovod's module of this name."""

from tfcollective.horovod.keras.callbacks import *  # noqa: F403
from tfcollective.horovod.keras.callbacks import __all__ as __all__  # noqa: PLC0414
