"""See ``tfcollective.elastic``."""

from tfcollective.elastic import *  # noqa: F403
