"""Checks that this TensorFlow has Estimators, and that we can train the given ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError


def estimators() -> Any:
    """The module ``tf.estimator``.

    Raises:
        UnsupportedError: this TensorFlow has none.
    """
    found = getattr(tf, "estimator", None)
    if found is None:
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} has no Estimators: they ended with TensorFlow 2.15. "
            "Use TensorFlow 2.15, or a Keras model with tfcollective.keras"
        )
    return found


def check_arguments(estimator: Any, train_spec: Any, eval_spec: Any) -> None:
    """Raises InvalidArgumentError or UnsupportedError that says what is wrong."""
    module = estimators()
    wanted = (
        ("estimator", estimator, "Estimator"),
        ("train_spec", train_spec, "TrainSpec"),
        ("eval_spec", eval_spec, "EvalSpec"),
    )
    for argument, value, name in wanted:
        if not isinstance(value, getattr(module, name)):
            raise InvalidArgumentError(f"{argument}: expected a tf.estimator.{name}, got {value!r}")
    config = estimator.config
    if config.cluster_spec and config.cluster_spec.jobs:
        raise InvalidArgumentError(
            "estimator: its RunConfig has understood TF_CONFIG and would start servers: "
            "call tfcollective.init() before the Estimator is made"
        )
    if config.train_distribute is not None:
        raise UnsupportedError("estimator: leave train_distribute out of its RunConfig: gradients are all-reduced here")
    if not estimator.model_dir:
        raise InvalidArgumentError("estimator: it has no model_dir: pass model_dir to the Estimator or its RunConfig")
