"""Begins data parallelism in a script that has not asked for it; ``tfcollective.keras._start.sitecustomize`` imports
``tfcollective.keras`` for it.
"""

from __future__ import annotations

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._base.settings import Settings, hide_data_parallel


def start_if_asked() -> None:
    """With ``--data-parallel``, once a job's process: as if the script began with
    ``keras.distribution.initialize(); set_distribution(DataParallel())``.

    Raises:
        UnsupportedError: this Keras has no ``keras.distribution``.
        ConfigError, RendezvousError: see ``tfcollective.init``.
    """
    if not Settings.load().data_parallel:
        return
    hide_data_parallel()
    distribution = getattr(tf.keras, "distribution", None)
    if distribution is None:
        raise UnsupportedError(
            f"data_parallel: it needs Keras 3, and this is Keras {tf.keras.__version__}: install TensorFlow 2.16 or "
            "newer without TF_USE_LEGACY_KERAS, or use tfcollective.keras.DistributedOptimizer"
        )
    distribution.initialize()
    if runtime.task().is_trainer:
        distribution.set_distribution(distribution.DataParallel())
