"""See ``tfcollective.tensorflow.compression``."""

from tfcollective.tensorflow.compression import *  # noqa: F403
