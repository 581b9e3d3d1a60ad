"""See ``tfcollective.tensorflow``."""

from tfcollective.tensorflow import *  # noqa: F403
