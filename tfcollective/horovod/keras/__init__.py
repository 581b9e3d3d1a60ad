"""Horovod's module of this name, also as ``tfcollective.horovod.tensorflow.keras``."""

from tfcollective import keras as _keras
from tfcollective.horovod._capabilities import *  # noqa: F403
from tfcollective.horovod._capabilities import __all__ as _capabilities
from tfcollective.keras import *  # noqa: F403
from tfcollective.tensorflow._objects import broadcast_object_fn

__all__ = [*_keras.__all__, *_capabilities, "broadcast_object_fn"]  # noqa: PLE0604
