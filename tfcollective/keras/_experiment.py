"""A Keras model with its data, to be trained by all ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.experiment import Trainable
from tfcollective._runtime import ProcessSet
from tfcollective.auxiliary_tasks import EvaluatorOptions, EvaluatorResult, KerasEvaluation, run_evaluator
from tfcollective.files import Place, Workspace, as_place, join
from tfcollective.keras._backup import BackupAndRestore
from tfcollective.keras._elastic_fit import Elastic
from tfcollective.keras._optimizers import distributed_states, optimizers_of, train_step_is_own
from tfcollective.keras._parallel import mode
from tfcollective.keras._rank_zero import RankZeroCallback
from tfcollective.keras._remote_files import PushCallback, redirected
from tfcollective.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

CHECKPOINT = "checkpoint-{epoch:04d}.weights.h5"
FINAL_MODEL = "model.keras"
BACKUP = "backup"
_DATA = ("x", "y", "validation_data")
# Callbacks that write files: only the chief's do.
_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger")


@dataclass(frozen=True)
class KerasExperiment(Trainable):
    """The training and evaluation that ``tfcollective.run(experiment_fn, ...)`` runs; ``experiment_fn`` returns it.

    Every rank makes the model and the data and calls ``fit``; all start from the chief's weights. The metrics of an
    epoch are averaged over the ranks. Rank 0 alone writes: into ``model_dir`` the weights after each epoch
    (``checkpoint-0001.weights.h5``, unless ``train_params`` has a ModelCheckpoint) and the trained model
    (``model.keras``), and what ``ModelCheckpoint``, ``TensorBoard`` and ``CSVLogger`` among its callbacks write.

    In an elastic job (``TaskSpec(min_instances=...)``, ``min_proc``) it trains with ``tfcollective.keras.Elastic()``,
    unless ``train_params`` has one with other arguments. Then the functions give all of the data, not this rank's part,
    and there is no backup: where rank 0 is lost, the next one continues to write the files.

    Attributes:
        model: a compiled model, or a function that makes one; its optimizer is a
            ``tfcollective.keras.DistributedOptimizer`` (with one rank any will do). A model with its own ``train_step``
            may hold several, or use a ``DistributedGradientTape``. In a job with ``data_parallel`` any optimizer will
            do, and the functions give all of the data.
        model_dir: where rank 0 writes: a directory, or a URL (``hdfs://``, ``s3://``, ... see ``tfcollective.files``).
            There, what rank 0 and its callbacks write at or below ``model_dir`` is written on the local disk first,
            and moved when it is whole.
        train_params: arguments of ``fit``, without the data.
        input_data_fn: makes ``fit``'s ``x``: a dataset or arrays, this rank's part (see ``shard``).
        target_data_fn: makes ``fit``'s ``y``, or None where ``x`` has it.
        validation_data_fn: makes ``fit``'s ``validation_data``, and what the evaluator evaluates with; or None.
        backup_freq: where the job may be started again (``max_restarts``), the run is backed up in ``backup`` of
            ``model_dir`` and resumes from there: after every "epoch", or every so many batches. Not where
            ``train_params`` has a ``BackupAndRestore``.
        evaluator_params: fields of ``EvaluatorOptions`` for the evaluator, for example ``best_metric``.
        process_set: the ranks that train this model together, and that of its ``DistributedOptimizer``; all if None.
            Its first rank then is rank 0 of the above. Sets that train side by side have experiments of their own,
            with another ``model_dir``. Not in elastic jobs.
    """

    model: Any
    model_dir: str
    train_params: Mapping[str, Any] = field(default_factory=dict)
    input_data_fn: Callable[[], Any] | None = None
    target_data_fn: Callable[[], Any] | None = None
    validation_data_fn: Callable[[], Any] | None = None
    evaluator_params: Mapping[str, Any] = field(default_factory=dict)
    backup_freq: str | int = "epoch"
    process_set: ProcessSet | None = None

    def train(self) -> dict[str, list[float]]:
        """Joins the world and trains.

        Returns:
            The metrics of each epoch, by name, averaged over the ranks.

        Raises:
            ConfigError: the model is not compiled, its optimizer is not distributed, or over other ranks, or
                ``train_params`` has data.
            InvalidArgumentError: this rank is not of ``process_set``.
            UnsupportedError: a callback that does not work on several ranks.
        """
        runtime.init()
        self._check_params()
        model = self._make_model()
        with ExitStack() as opened:
            workspace = opened.enter_context(Workspace(self._place()))
            arguments = self._fit_arguments(workspace)
            if workspace.remote and (self._is_chief() or runtime.settings().elastic):
                callbacks = arguments["callbacks"]
                writers = [one.callback if isinstance(one, RankZeroCallback) else one for one in callbacks]
                opened.enter_context(redirected(writers, str(self._place()), workspace.directory))
            history = model.fit(**arguments)
            if self._is_chief():
                model.save(workspace.directory / FINAL_MODEL)
                workspace.push()
        return {name: [float(value) for value in values] for name, values in history.history.items()}

    def evaluate(self) -> EvaluatorResult:
        """Evaluates the checkpoints in ``model_dir`` one after the other until training has ended.

        Raises:
            ConfigError: the model is not compiled, there are no data, or ``evaluator_params`` has something unknown.
        """
        runtime.init()
        if self.validation_data_fn is None:
            raise ConfigError("validation_data_fn: the evaluator needs it: it evaluates with these data")
        evaluation = KerasEvaluation(self.validation_data_fn, self._make_model())
        return run_evaluator(self._place(), evaluation, self._evaluator_options())

    def output_dir(self) -> str | None:
        """``model_dir``."""
        return str(self._place())

    def _is_chief(self) -> bool:
        return runtime.members(self.process_set).rank == 0

    def _place(self) -> Place:
        return as_place(self.model_dir, "model_dir")

    def _evaluator_options(self) -> EvaluatorOptions:
        fixed = {"job_id": runtime.settings().job_id, "leave_out": (FINAL_MODEL,)}  # the last checkpoint's weights
        try:
            return EvaluatorOptions(**{**fixed, **self.evaluator_params})
        except TypeError as error:
            raise ConfigError(f"evaluator_params: {error}") from error

    def _check_params(self) -> None:
        data = [name for name in _DATA if name in self.train_params]
        if data:
            raise ConfigError(f"train_params: {data[0]} comes from input_data_fn, target_data_fn or validation_data_fn")
        if self.process_set is not None and runtime.settings().elastic:
            raise UnsupportedError("process_set: not in an elastic job, whose data are divided over all ranks")
        for callback in self.train_params.get("callbacks") or ():
            if isinstance(callback, tf.keras.callbacks.BackupAndRestore) and self._several():
                raise UnsupportedError(
                    "train_params: Keras's BackupAndRestore restores on each rank for itself: "
                    "use tfcollective.keras.BackupAndRestore"
                )

    def _make_model(self) -> Any:
        is_model = isinstance(self.model, tf.keras.Model)  # which can be called, too
        model = self.model() if callable(self.model) and not is_model else self.model
        if not optimizers_of(model):
            raise ConfigError("model: it is not compiled")
        if not runtime.task().is_trainer or mode.active() is not None or not self._several():
            return model
        states = distributed_states(model).values()
        if not states and not train_step_is_own(model):
            raise ConfigError("model: compile it with tfcollective.keras.DistributedOptimizer(...) as its optimizer")
        ranks = runtime.members(self.process_set).ranks
        if any(runtime.members(state.options.process_set, outside=True).ranks != ranks for state in states):
            raise ConfigError("model: its DistributedOptimizer has another process_set than the experiment")
        return model

    def _several(self) -> bool:
        return runtime.members(self.process_set).size > 1 or runtime.settings().elastic

    def _fit_arguments(self, workspace: Workspace) -> dict[str, Any]:
        makers = zip(_DATA, (self.input_data_fn, self.target_data_fn, self.validation_data_fn), strict=True)
        data = {name: make() for name, make in makers if make is not None}
        chief = self._is_chief()
        quiet = {} if chief else {"verbose": 0}
        elastic = runtime.settings().elastic
        callbacks = self._elastic_callbacks(workspace) if elastic else self._callbacks(chief, workspace)
        return {"verbose": 2, **self.train_params, **quiet, **data, "callbacks": callbacks}

    def _elastic_callbacks(self, workspace: Workspace) -> list[Any]:
        """Returns rank 0's callbacks on all ranks, since each may become rank 0."""
        given = list(self.train_params.get("callbacks") or ())
        elastic = () if any(isinstance(one, Elastic) for one in given) else (Elastic(),)
        writers = (*self._writers(), PushCallback)
        return [
            *elastic,
            *(
                RankZeroCallback(one) if isinstance(one, writers) else one
                for one in self._callbacks(True, workspace, restarts=False)
            ),
        ]

    @staticmethod
    def _writers() -> tuple[Any, ...]:
        return tuple(getattr(tf.keras.callbacks, name) for name in _WRITERS)

    def _callbacks(self, chief: bool, workspace: Workspace, *, restarts: bool = True) -> list[Any]:
        """Equal weights first, averages before those that use them, the chief's files and the backup last."""
        given = list(self.train_params.get("callbacks") or ())
        kinds = tuple(type(callback) for callback in given)
        callbacks: list[Any] = []
        if BroadcastGlobalVariablesCallback not in kinds:
            root = runtime.members(self.process_set).ranks[0]
            callbacks.append(BroadcastGlobalVariablesCallback(root, process_set=self.process_set))
        if MetricAverageCallback not in kinds:
            callbacks.append(MetricAverageCallback(process_set=self.process_set))
        writers = self._writers()
        callbacks += [callback for callback in given if chief or not isinstance(callback, writers)]
        if chief:
            workspace.directory.mkdir(parents=True, exist_ok=True)
            if not any(isinstance(callback, tf.keras.callbacks.ModelCheckpoint) for callback in given):
                path = str(workspace.directory / CHECKPOINT)
                callbacks.append(tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
            if workspace.remote:
                callbacks.append(PushCallback(workspace))
        if restarts and runtime.settings().max_restarts and BackupAndRestore not in kinds:
            backup = join(self._place(), BACKUP)
            callbacks.append(BackupAndRestore(backup, self.backup_freq, process_set=self.process_set))
        return callbacks
