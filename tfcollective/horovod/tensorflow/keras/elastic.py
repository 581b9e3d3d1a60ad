"""Horovod's module of this name."""

from tfcollective.keras.elastic import *  # noqa: F403
from tfcollective.keras.elastic import __all__ as __all__  # noqa: PLC0414
