"""See ``tfcollective.keras.callbacks``."""

from tfcollective.keras.callbacks import *  # noqa: F403
