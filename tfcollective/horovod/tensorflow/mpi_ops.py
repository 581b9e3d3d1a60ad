"""The names of Horovod's module of this name, and more."""

from tfcollective.horovod.tensorflow import *  # noqa: F403
from tfcollective.horovod.tensorflow import __all__ as __all__  # noqa: PLC0414
