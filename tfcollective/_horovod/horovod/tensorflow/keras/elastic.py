"""See ``tfcollective.keras.elastic``."""

from tfcollective.keras.elastic import *  # noqa: F403
