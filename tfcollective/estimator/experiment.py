"""An Estimator with what it is trained and evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfcollective.estimator.training import TrainingResult, train_and_evaluate
from tfcollective.experiment import Trainable


@dataclass(frozen=True)
class Experiment(Trainable):
    """What ``tfcollective.run(experiment_fn, ...)`` trains; ``experiment_fn`` returns it.

    ``experiment_fn`` calls ``tfcollective.init()`` before it makes the Estimator.

    Attributes:
        estimator: see :func:`train_and_evaluate`, like the others.
        train_spec: a ``tf.estimator.TrainSpec``.
        eval_spec: a ``tf.estimator.EvalSpec``.
    """

    estimator: Any
    train_spec: Any
    eval_spec: Any

    @property
    def config(self) -> Any:
        """The Estimator's RunConfig."""
        return self.estimator.config

    def train(self) -> TrainingResult:
        """See :func:`train_and_evaluate`."""
        return train_and_evaluate(self.estimator, self.train_spec, self.eval_spec)

    def evaluate(self) -> TrainingResult:
        """The same: it sees that this process is the evaluator."""
        return self.train()

    def output_dir(self) -> str | None:
        """The Estimator's ``model_dir``."""
        return str(self.estimator.model_dir)
