"""Begins data parallelism in a script that has not asked for it; ``tfcollective.keras._start.sitecustomize`` imports
``tfcollective.keras`` for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings, hide_data_parallel
from tfcollective.keras._copies import replace_method
from tfcollective.keras._parallel import mode
from tfcollective.keras._parallel.distribution import initialize


def start_if_asked() -> None:
    """With ``--data-parallel``, once a job's process: as if the script began with
    ``keras.distribution.initialize(); set_distribution(DataParallel())``.

    Raises:
        ConfigError, RendezvousError: see ``tfcollective.init``.
    """
    if not Settings.load().data_parallel:
        return
    hide_data_parallel()
    initialize()
    if runtime.task().is_trainer:
        mode.begin()


def refuse_other(keras: Any) -> None:
    """Makes training an error with a Keras that is not TensorFlow's ``tf.keras``, whose work alone is divided.

    Args:
        keras: the module that the script has imported.
    """
    if keras.Model is not tf.keras.Model:
        for method in ("fit", "train_on_batch"):
            replace_method(keras.Model, method, _refuse)


def _refuse(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if not runtime.is_initialized() or runtime.size() == 1:
        return original(model, *args, **kwargs)
    used = "tf_keras" if tf.keras.Model.__module__.startswith("tf_keras") else "keras"
    raise ConfigError(
        f"--data-parallel divides the work of {used}, which tf.keras is here, and this model is one of another Keras: "
        "set TF_USE_LEGACY_KERAS=1 for tf_keras, and leave it out for Keras 3"
    )
