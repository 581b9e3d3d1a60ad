"""An Estimator that trains like another and writes nothing: what ranks other than 0 run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfcollective.estimator.support import estimators


def silent_copy(estimator: Any, directory: str) -> Any:
    """An Estimator with the model and the configuration of `estimator` but without checkpoints, summaries and logs.

    Args:
        estimator: is left as it is.
        directory: an empty one, which it needs but leaves empty.
    """
    model_fn = estimator.model_fn

    def silent_model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = model_fn(features, labels, mode, config)
        return spec._replace(training_hooks=silent_hooks(spec.training_hooks), training_chief_hooks=())

    config = estimator.config.replace(
        model_dir=directory,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=0,
        log_step_count_steps=None,
    )
    return estimators().Estimator(model_fn=silent_model_fn, config=config)


def silent_hooks(hooks: Iterable[Any]) -> tuple[Any, ...]:
    """The hooks without those that write."""
    train = tf.compat.v1.train
    writers = (train.CheckpointSaverHook, train.SummarySaverHook, train.StepCounterHook, train.LoggingTensorHook)
    return tuple(hook for hook in hooks if not isinstance(hook, writers))
