"""The names of Horovod's module of this name, and more."""

from tfcollective.tensorflow import *  # noqa: F403
