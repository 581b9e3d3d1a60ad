"""See ``tfcollective.tensorflow.data``."""
