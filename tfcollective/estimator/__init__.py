"""Estimators on several ranks, for TensorFlow 2.15; later versions have none."""

from __future__ import annotations

from tfcollective.estimator._evaluation import run_estimator_evaluator
from tfcollective.estimator._training import Experiment, TrainingResult, train_and_evaluate

__all__ = ["Experiment", "TrainingResult", "run_estimator_evaluator", "train_and_evaluate"]
