"""See ``tfcollective.keras``."""

from tfcollective.keras import *  # noqa: F403
