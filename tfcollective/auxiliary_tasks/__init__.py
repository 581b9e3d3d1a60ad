"""Auxiliary tasks, beside training and outside the world: the evaluator's loop and the TensorBoard process.

Importing this imports no TensorFlow.
"""

from __future__ import annotations

from tfcollective.auxiliary_tasks._best import BestModel
from tfcollective.auxiliary_tasks._checkpoints import Checkpoint, find_checkpoints
from tfcollective.auxiliary_tasks._evaluator import Evaluation, EvaluatorOptions, EvaluatorResult, run_evaluator
from tfcollective.auxiliary_tasks._figures import Figures
from tfcollective.auxiliary_tasks._keras_evaluation import KerasEvaluation
from tfcollective.auxiliary_tasks._training_flag import announced_training, training_ended

__all__ = [
    "BestModel",
    "Checkpoint",
    "Evaluation",
    "EvaluatorOptions",
    "EvaluatorResult",
    "Figures",
    "KerasEvaluation",
    "announced_training",
    "find_checkpoints",
    "run_evaluator",
    "training_ended",
]
