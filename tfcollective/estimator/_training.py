"""``train_and_evaluate`` for Estimators: the same call in every role of a job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._base.experiment import Trainable
from tfcollective._base.log import get_logger
from tfcollective._base.tasks import EVALUATOR
from tfcollective.auxiliary_tasks import announced_training
from tfcollective.estimator._evaluation import evaluate_once, run_estimator_evaluator
from tfcollective.estimator._hooks import BroadcastHook, ReductionCheckHook, StepRateHook
from tfcollective.estimator._remote_files import PushListener, brought_here, place_of, training_files
from tfcollective.estimator._support import check_arguments, estimators
from tfcollective.files import Workspace
from tfcollective.tensorflow import allgather_object

_LOG = get_logger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """The result of ``train_and_evaluate``.

    Attributes:
        global_step: of the last checkpoint; None in a task that does not write any, or if there is none.
        metrics: of the last evaluation in this process; empty if there was none.
    """

    global_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def train_and_evaluate(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    final_evaluation: bool | None = None,
    idle_timeout: float = 1200.0,
) -> TrainingResult:
    """Trains an Estimator on all ranks together; the evaluator's task evaluates beside it.

    The optimizer in ``model_fn`` is wrapped with ``tfcollective.tensorflow.DistributedOptimizer``; everything else is
    done here. All ranks start from rank 0's variables, also after rank 0 has restored a checkpoint. Rank 0 writes
    checkpoints, summaries and logs, the others nothing: hooks of theirs that write are left out. If rank 0's last
    checkpoint is of ``max_steps`` or later, no rank trains. Each rank's ``input_fn`` has to give its own part of the
    data (``tfcollective.tensorflow.shard``), and equally many batches if there is no ``max_steps``.

    Args:
        estimator: a ``tf.estimator.Estimator``, made after ``tfcollective.init()``. Its ``model_dir`` may be a URL
            (``hdfs://``, ``s3://``, ... see ``tfcollective.files``): every checkpoint is moved there when it is whole.
        train_spec: a ``tf.estimator.TrainSpec``; the same ``max_steps`` on all ranks.
        eval_spec: a ``tf.estimator.EvalSpec``. Its delays are not heeded: every checkpoint is evaluated.
        final_evaluation: rank 0 evaluates and exports at the end; None: unless the launcher has started an evaluator.
        idle_timeout: after how many seconds without a new checkpoint the evaluator ends.

    Raises:
        UnsupportedError: TensorFlow is newer than 2.15, or the Estimator has a distribution strategy.
        InvalidArgumentError: an argument is wrong, ranks have different ``max_steps``, or no gradient is reduced.
        CollectiveError: another rank was lost; says which.
    """
    estimators()
    runtime.init()
    check_arguments(estimator, train_spec, eval_spec)
    task = runtime.task()
    if task.type == EVALUATOR:
        result = run_estimator_evaluator(estimator, train_spec, eval_spec, idle_timeout=idle_timeout)
        return TrainingResult(result.figures.last_training_step, result.metrics)
    if not task.is_trainer:
        return TrainingResult()
    if runtime.rank() != 0:
        _train_silently(estimator, train_spec)
        return TrainingResult()
    with brought_here(estimator, training_files) as (here, workspace):
        with announced_training(place_of(estimator)):
            if not _is_trained(here, train_spec.max_steps):
                _train(here, train_spec, workspace)
            workspace.push()
        if final_evaluation is None:
            final_evaluation = not runtime.settings().evaluator
        metrics = evaluate_once(here, eval_spec) if final_evaluation else {}
        workspace.push()
        return TrainingResult(_last_step(here), metrics)


@dataclass(frozen=True)
class Experiment(Trainable):
    """The training that ``tfcollective.run(experiment_fn, ...)`` runs; ``experiment_fn`` returns it.

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


def _is_trained(estimator: Any, max_steps: int | None) -> bool:
    """True if nothing is left to train: rank 0 decides, so that no rank waits for one that has left."""
    mine = (_last_step(estimator) if runtime.rank() == 0 else None, max_steps)
    everyone = allgather_object(mine, name="estimator/trained")
    step, wanted = everyone[0]
    asked = [theirs for _, theirs in everyone]
    if any(theirs != wanted for theirs in asked):
        raise InvalidArgumentError(f"train_spec: max_steps differs from rank to rank: {asked}")
    trained = step is not None and wanted is not None and step >= wanted
    if trained:
        _LOG.info("nothing to train: the last checkpoint is of step %d, max_steps is %d", step, wanted)
    return trained


def _last_step(estimator: Any) -> int | None:
    path = estimator.latest_checkpoint()
    if path is None:
        return None
    return int(tf.train.load_checkpoint(path).get_tensor(tf.compat.v1.GraphKeys.GLOBAL_STEP))


def _train(estimator: Any, train_spec: Any, workspace: Workspace) -> None:
    """Rank 0's part."""
    listeners = list(getattr(train_spec, "saving_listeners", None) or ())
    if workspace.remote and (estimator.config.save_checkpoints_steps or estimator.config.save_checkpoints_secs):
        listeners.append(PushListener(workspace))
    estimator.train(
        train_spec.input_fn,
        hooks=[*train_spec.hooks, BroadcastHook(), ReductionCheckHook(), StepRateHook()],
        max_steps=train_spec.max_steps,
        saving_listeners=listeners or None,
    )


def _train_silently(estimator: Any, train_spec: Any) -> None:
    """The other ranks' part, if there is something to train."""
    if _is_trained(estimator, train_spec.max_steps):
        return
    hooks = [*_silent_hooks(train_spec.hooks), BroadcastHook(), ReductionCheckHook()]
    with tempfile.TemporaryDirectory(prefix="tfcollective-") as directory:
        _silent_copy(estimator, directory).train(train_spec.input_fn, hooks=hooks, max_steps=train_spec.max_steps)


def _silent_copy(estimator: Any, directory: str) -> Any:
    """An Estimator with the model and the configuration of `estimator` but without checkpoints, summaries and logs:
    what ranks other than 0 run.

    Args:
        estimator: is left as it is.
        directory: an empty one, which it needs but leaves empty.
    """
    model_fn = estimator.model_fn

    def silent_model_fn(features: Any, labels: Any, mode: Any, config: Any) -> Any:
        spec = model_fn(features, labels, mode, config)
        return spec._replace(training_hooks=_silent_hooks(spec.training_hooks), training_chief_hooks=())

    config = estimator.config.replace(
        model_dir=directory,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=0,
        log_step_count_steps=None,
    )
    return estimators().Estimator(model_fn=silent_model_fn, config=config)


def _silent_hooks(hooks: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the hooks without those that write."""
    train = tf.compat.v1.train
    writers = (train.CheckpointSaverHook, train.SummarySaverHook, train.StepCounterHook, train.LoggingTensorHook)
    return tuple(hook for hook in hooks if not isinstance(hook, writers))
