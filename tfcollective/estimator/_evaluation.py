"""Evaluates an Estimator's checkpoints: the evaluator's task, and rank 0's last evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective.auxiliary_tasks import (
    Checkpoint,
    Evaluation,
    EvaluatorOptions,
    EvaluatorResult,
    Figures,
    run_evaluator,
)
from tfcollective.auxiliary_tasks._checkpoints import TENSORFLOW, fetched, find_checkpoints
from tfcollective.estimator._hooks import StepTimer
from tfcollective.estimator._remote_files import brought_here, evaluation_events, place_of
from tfcollective.files import Place, join


def run_estimator_evaluator(
    estimator: Any,
    train_spec: Any,
    eval_spec: Any,
    *,
    idle_timeout: float = 1200.0,
    poll_interval: float = 2.0,
    on_figures: Callable[[Figures], object] | None = None,
) -> EvaluatorResult:
    """Evaluates the checkpoints that rank 0 writes, in order, each once, until training has ended.

    Exporters run after each; when the last one is evaluated they run for it as the final export.

    Args:
        estimator: as the ranks have it.
        train_spec: its ``max_steps`` tell when the last checkpoint is evaluated.
        eval_spec: what to evaluate with; its delays are not heeded.
        idle_timeout: seconds without a new checkpoint after which it ends.
        poll_interval: how often it looks, in seconds.
        on_figures: called with the four figures after each checkpoint.
    """
    place = place_of(estimator)
    name = "eval" if eval_spec.name is None else f"eval_{eval_spec.name}"
    options = EvaluatorOptions(
        output_dir=join(place, name),
        max_steps=train_spec.max_steps,
        idle_timeout=idle_timeout,
        poll_interval=poll_interval,
        write_events=False,  # Estimator.evaluate does
        kinds=(TENSORFLOW,),
        job_id=runtime.settings().job_id if runtime.is_initialized() else None,  # an earlier job's end is not ours
    )
    with brought_here(estimator, evaluation_events) as (here, workspace):
        evaluate = _Evaluate(here, eval_spec, train_spec.max_steps, workspace.push)
        result = run_evaluator(place, evaluate, options, on_figures=on_figures)
        evaluate.export_last(place)
    return result


def evaluate_once(estimator: Any, eval_spec: Any) -> Mapping[str, float]:
    """Evaluates the last checkpoint and makes the final export; empty if there is no checkpoint."""
    path = estimator.latest_checkpoint()
    if path is None:
        return {}
    metrics = _evaluate(estimator, eval_spec, path)
    _export(estimator, eval_spec, path, metrics, final=True)
    return {name: float(value) for name, value in metrics.items()}


class _Evaluate:
    """Evaluates and exports one checkpoint after the other."""

    def __init__(self, estimator: Any, eval_spec: Any, max_steps: int | None, push: Callable[[], None]) -> None:
        self._estimator = estimator
        self._push = push
        self._eval_spec = eval_spec
        self._max_steps = max_steps
        self._last: tuple[str, Mapping[str, Any]] | None = None

    def __call__(self, checkpoint: Checkpoint) -> Evaluation:
        timer = StepTimer()
        metrics = _evaluate(self._estimator, self._eval_spec, checkpoint.path, timer)
        step = int(metrics["global_step"])
        final = self._max_steps is not None and step >= self._max_steps
        _export(self._estimator, self._eval_spec, checkpoint.path, metrics, final)
        self._push()
        self._last = None if final else (checkpoint.name, metrics)
        numbers = {name: float(value) for name, value in metrics.items()}
        return Evaluation(numbers, timer.steps, timer.seconds, step)

    def export_last(self, model_dir: Place) -> None:
        """The final export, if the last checkpoint that came was not known to be the last."""
        if self._last is None:
            return
        name, metrics = self._last
        for checkpoint in find_checkpoints(model_dir):
            if checkpoint.name == name:
                with fetched(checkpoint) as here:
                    _export(self._estimator, self._eval_spec, here.path, metrics, final=True)
                self._push()


def _evaluate(estimator: Any, eval_spec: Any, path: str, *hooks: Any) -> Any:
    return estimator.evaluate(
        eval_spec.input_fn,
        steps=eval_spec.steps,
        hooks=[*eval_spec.hooks, *hooks],
        checkpoint_path=path,
        name=eval_spec.name,
    )


def _export(estimator: Any, eval_spec: Any, path: str, metrics: Any, final: bool) -> None:
    for exporter in eval_spec.exporters:
        exporter.export(
            estimator=estimator,
            export_path=str(join(estimator.model_dir, "export", exporter.name)),
            checkpoint_path=path,
            eval_result=metrics,
            is_the_final_export=final,
        )
