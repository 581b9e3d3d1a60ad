"""What runs beside training, outside the world: the evaluator's loop and the TensorBoard process.

Importing this imports no TensorFlow.
"""

from __future__ import annotations

from tfcollective.side_tasks.best import BestModel
from tfcollective.side_tasks.checkpoints import Checkpoint, find_checkpoints
from tfcollective.side_tasks.evaluator import Evaluation, EvaluatorOptions, EvaluatorResult, run_evaluator
from tfcollective.side_tasks.figures import Figures
from tfcollective.side_tasks.keras_evaluation import KerasEvaluation
from tfcollective.side_tasks.training_flag import announced_training, training_ended

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
