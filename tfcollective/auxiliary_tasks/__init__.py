"""What runs beside training, outside the world: the evaluator's loop and the TensorBoard process.

Importing this imports no TensorFlow.
"""

from __future__ import annotations

from tfcollective.auxiliary_tasks.best import BestModel
from tfcollective.auxiliary_tasks.checkpoints import Checkpoint, find_checkpoints
from tfcollective.auxiliary_tasks.evaluator import Evaluation, EvaluatorOptions, EvaluatorResult, run_evaluator
from tfcollective.auxiliary_tasks.figures import Figures
from tfcollective.auxiliary_tasks.keras_evaluation import KerasEvaluation
from tfcollective.auxiliary_tasks.training_flag import announced_training, training_ended

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
