"""See ``tfcollective.tensorflow``."""

from tfcollective.tensorflow import SyncBatchNormalization  # noqa: F401
