"""Begins data parallelism in a script that has not asked for it: see ``tfcollective.keras._start.sitecustomize``."""

from __future__ import annotations

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError


def start() -> None:
    """As if the script began with ``keras.distribution.initialize(); set_distribution(DataParallel())``.

    Raises:
        UnsupportedError: this Keras has no ``keras.distribution``.
        ConfigError, RendezvousError: see ``tfcollective.init``.
    """
    import tfcollective.keras  # noqa: F401  # changes Keras

    distribution = getattr(tf.keras, "distribution", None)
    if distribution is None:
        raise UnsupportedError(
            f"data_parallel: it needs Keras 3, and this is Keras {tf.keras.__version__}: install TensorFlow 2.16 or "
            "newer without TF_USE_LEGACY_KERAS, or use tfcollective.keras.DistributedOptimizer"
        )
    distribution.initialize()
    if runtime.task().is_trainer:
        distribution.set_distribution(distribution.DataParallel())
