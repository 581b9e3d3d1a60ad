"""See ``tfcollective.tensorflow._compression``."""

from tfcollective.tensorflow._compression import *  # noqa: F403
