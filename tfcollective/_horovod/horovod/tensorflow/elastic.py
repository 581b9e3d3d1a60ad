"""See ``tfcollective.tensorflow.elastic``."""

from tfcollective.tensorflow.elastic import *  # noqa: F403
