"""Horovod's module of this name."""

from tfcollective.horovod.keras import *  # noqa: F403
from tfcollective.horovod.keras import __all__ as __all__
