"""The evaluator's loop: evaluates the checkpoints that training writes, in order, each once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective.auxiliary_tasks import _training_flag as training_flag
from tfcollective.auxiliary_tasks._best import Best, BestModel
from tfcollective.auxiliary_tasks._checkpoints import Checkpoint, NotWholeError, fetched, find_checkpoints
from tfcollective.auxiliary_tasks._figures import Figures, Meter
from tfcollective.auxiliary_tasks._plan import Action, Evaluate, Finish, Policy, View, Wait, next_action
from tfcollective.files import Place, Workspace, as_place, is_url, join
from tfcollective.files._places import read_json, write_json

_STATE_FILE = "evaluator.json"
# How long the file system of a URL may be away, and how many looks later what is not whole is tried again.
_AWAY_S = 180.0
_AGAIN_LOOKS = 10
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating one checkpoint.

    Attributes:
        metrics: by name.
        steps: how many batches were evaluated.
        step_seconds: the time spent in them.
        training_step: the training step of the checkpoint; None: the number in its name.
    """

    metrics: Mapping[str, float]
    steps: int = 0
    step_seconds: float = 0.0
    training_step: int | None = None


Evaluator = Callable[[Checkpoint], Evaluation]
Exporter = Callable[[Checkpoint, Mapping[str, float]], object]


@dataclass(frozen=True, kw_only=True)
class EvaluatorOptions(Policy):
    """The options of an evaluator.

    ``max_steps``, ``idle_timeout``, ``poll_interval`` and ``only_latest`` are those of :class:`Policy`.

    Attributes:
        output_dir: where events, state and the best model go; ``eval`` in the model's directory if None.
        best_metric: keep a copy of the checkpoint that is best by this metric, in ``best`` of the output directory.
        best_mode: "min" or "max".
        write_events: write the metrics for TensorBoard.
        kinds: of checkpoints to evaluate: "tensorflow", "keras", "weights".
        leave_out: names of files that are no checkpoints to evaluate.
        job_id: training has ended when this job says so; None: any job.
    """

    output_dir: Place | None = None
    best_metric: str | None = None
    best_mode: str = "min"
    write_events: bool = True
    kinds: Sequence[str] = ("tensorflow", "keras", "weights")
    leave_out: Sequence[str] = ()
    job_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("idle_timeout", "poll_interval"):
            if not 0 < getattr(self, name) < threading.TIMEOUT_MAX:
                raise ConfigError(f"{name}: expected seconds above 0, got {getattr(self, name)!r}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps: expected 1 or more, got {self.max_steps}")


@dataclass(frozen=True)
class EvaluatorResult:
    """The end of an evaluator.

    Attributes:
        reason: why it ended.
        evaluated: how many checkpoints it evaluated since it was started.
        metrics: of the last of them.
        figures: as of the end.
        best: the best checkpoint, if it kept one.
    """

    reason: str
    evaluated: int
    metrics: Mapping[str, float]
    figures: Figures
    best: Best | None


def run_evaluator(
    model_dir: Place,
    evaluate: Evaluator,
    options: EvaluatorOptions | None = None,
    *,
    training_ended: Callable[[], bool] | None = None,
    exporters: Sequence[Exporter] = (),
    on_figures: Callable[[Figures], object] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    pause: Callable[[float], object] | None = None,
) -> EvaluatorResult:
    """Evaluates the checkpoints in `model_dir` as they come, until training has ended or nothing comes any more.

    A restarted evaluator resumes where it was: ``evaluator.json`` in the output directory says what is done. A
    checkpoint whose writer was killed in the middle is left out, with a warning, unless it is written again.

    Args:
        model_dir: where the chief writes checkpoints; may come into being later. At a URL (``hdfs://``, ``s3://``,
            ...) checkpoints are fetched, and what is written is moved there.
        evaluate: evaluates one of them.
        options: how; the defaults if None.
        training_ended: whether no checkpoint will follow; if None, the chief's ``announced_training`` and, in a job
            after ``init()``, the launcher say so.
        exporters: called with each checkpoint and its metrics.
        on_figures: called with the figures after each checkpoint. In a job, ``tfcollective status`` and the report
            show them in any case.
        clock: for tests.
        pause: waits so many seconds; for tests.

    Raises:
        ConfigError: the state file or an option cannot be used. What `evaluate` and exporters raise passes through.
    """
    loop = _Loop(
        as_place(model_dir, "model_dir"), evaluate, options or EvaluatorOptions(), exporters, on_figures, clock
    )
    return loop.run(training_ended or loop.flag_is_raised, pause or threading.Event().wait)


class _AwayError(OSError):
    """The file system of a URL does not answer as it should."""


@dataclass
class _State:
    """The state that a restarted evaluator needs."""

    done: list[str]
    last_step: int | None


class _Loop:
    def __init__(
        self,
        model_dir: Place,
        evaluate: Evaluator,
        options: EvaluatorOptions,
        exporters: Sequence[Exporter],
        on_figures: Callable[[Figures], object] | None,
        clock: Clock,
    ) -> None:
        self._model_dir = model_dir
        self._evaluate = evaluate
        self._options = options
        self._exporters = exporters
        self._on_figures = on_figures
        self._clock = clock
        given = options.output_dir
        self._output = join(model_dir, "eval") if given is None else as_place(given, "output_dir")
        self._events = Workspace(self._output)
        self._state = _load_state(join(self._output, _STATE_FILE))
        self._meter = Meter(clock.monotonic(), self._state.last_step)
        self._best = self._best_model()
        self._writer: Any = None
        self._seen: frozenset[str] = frozenset()
        self._broken: dict[str, float] = {}  # what is not whole, and when it is looked at again
        self._ended = False
        self._away_since: float | None = None
        self._busy_at = clock.monotonic()
        self._evaluated = 0
        self._metrics: Mapping[str, float] = {}

    def flag_is_raised(self) -> bool:
        """True if the chief, or the launcher, has said that training has ended."""
        said = training_flag.training_ended(self._model_dir, self._options.job_id)
        return said or (runtime.is_initialized() and runtime.training_ended())

    def run(self, training_ended: Callable[[], bool], pause: Callable[[float], object]) -> EvaluatorResult:
        """See :func:`run_evaluator`."""
        with self._events:
            return self._run(training_ended, pause)

    def _run(self, training_ended: Callable[[], bool], pause: Callable[[float], object]) -> EvaluatorResult:
        while True:
            try:
                action = self._act(training_ended)
            except _AwayError as error:
                self._bear(error)
                action = Wait(self._options.poll_interval)
            if isinstance(action, Wait):
                pause(action.seconds)  # files that another node writes give no notice
            elif isinstance(action, Finish):
                return self._result(action.reason)

    def _act(self, training_ended: Callable[[], bool]) -> Action:
        """Looks once, and acts, except for waiting and ending."""
        view = self._look(training_ended)
        action = next_action(view, self._options)
        if isinstance(action, Evaluate):
            self._handle(action)
        elif isinstance(action, Finish) and view.broken:
            names = ", ".join(one.name for one in view.found if one.identity in view.broken)
            _LOG.warning("not whole, and so not evaluated: %s", names)
        self._away_since = None
        return action

    def _bear(self, error: _AwayError) -> None:
        """A file system elsewhere may be away for a while, as that of a name node which is started again."""
        now = self._clock.monotonic()
        if self._away_since is None:
            self._away_since = now
            _LOG.warning("the evaluator waits: %s", error)
        if now - self._away_since >= min(_AWAY_S, self._options.idle_timeout):
            raise error

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not is_url(self._model_dir) or isinstance(error, FileNotFoundError):
                raise
            raise _AwayError(str(error)) from error

    def _look(self, training_ended: Callable[[], bool]) -> View:
        with self._reached():
            ended = training_ended()  # before the files: what comes between is seen now
            found = tuple(c for c in find_checkpoints(self._model_dir) if self._is_wanted(c))
        identities = frozenset(checkpoint.identity for checkpoint in found)
        settled, self._seen = self._seen & identities, identities
        now = self._clock.monotonic()
        if ended and not self._ended:
            self._broken.clear()  # training has ended and writes nothing: now it counts
        self._ended = ended
        self._broken = {one: until for one, until in self._broken.items() if one in identities and now < until}
        done, broken = frozenset(self._state.done), frozenset(self._broken)
        return View(found, settled, broken, done, ended, self._state.last_step, now - self._busy_at)

    def _is_wanted(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.kind in self._options.kinds and checkpoint.name not in self._options.leave_out

    def _handle(self, action: Evaluate) -> None:
        for checkpoint in action.left_out:
            _LOG.info("%s is left out: a newer one is there", checkpoint.name)
            self._state.done.append(checkpoint.identity)
        began = self._clock.monotonic()
        try:
            with contextlib.ExitStack() as opened:
                with self._reached():
                    here = opened.enter_context(fetched(action.checkpoint))
                self._evaluate_one(here, began)
        except NotWholeError as error:
            _LOG.warning("%s waits: %s", action.checkpoint.name, error)
            self._broken[action.checkpoint.identity] = began + _AGAIN_LOOKS * self._options.poll_interval
            return
        except Exception:
            with self._reached():
                found = find_checkpoints(self._model_dir)
            if action.checkpoint.identity in {one.identity for one in found}:
                raise
            _LOG.warning("%s was deleted before it was evaluated: keep more checkpoints", action.checkpoint.name)
        self._busy_at = self._clock.monotonic()
        self._state.done.append(action.checkpoint.identity)
        self._save_state()

    def _evaluate_one(self, checkpoint: Checkpoint, began: float) -> None:
        evaluation = self._evaluate(checkpoint)
        step = evaluation.training_step if evaluation.training_step is not None else checkpoint.step
        if step is not None:
            self._state.last_step = max(step, self._state.last_step or 0)
        if self._options.write_events:
            self._write_events(evaluation.metrics, step)
        if self._best is not None:
            self._best(checkpoint, evaluation.metrics, step)
        for export in self._exporters:
            export(checkpoint, evaluation.metrics)
        now = self._clock.monotonic()
        self._meter.evaluated(now - began, evaluation.steps, evaluation.step_seconds, step)
        self._evaluated += 1
        self._metrics = dict(evaluation.metrics)
        _LOG.info("%s: %s", checkpoint.name, ", ".join(f"{k} {v:.6g}" for k, v in sorted(self._metrics.items())))
        figures = self._meter.figures(now)
        if runtime.is_initialized():
            runtime.publish({"figures": asdict(figures), "metrics": self._metrics, "checkpoint": checkpoint.name})
        if self._on_figures is not None:
            self._on_figures(figures)

    def _write_events(self, metrics: Mapping[str, float], step: int | None) -> None:
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._events.directory))
        with self._writer.as_default(step=self._evaluated if step is None else step):
            for name, value in sorted(metrics.items()):
                tf.summary.scalar(name, value)
        self._writer.flush()
        self._events.push()

    def _save_state(self) -> None:
        """Saves which of the existing checkpoints are done: the list does not grow without bound."""
        self._state.done = [identity for identity in self._state.done if identity in self._seen]
        figures = asdict(self._meter.figures(self._clock.monotonic()))
        write_json(join(self._output, _STATE_FILE), {**asdict(self._state), "figures": figures})

    def _best_model(self) -> BestModel | None:
        metric = self._options.best_metric
        return None if metric is None else BestModel(join(self._output, "best"), metric, self._options.best_mode)

    def _result(self, reason: str) -> EvaluatorResult:
        if self._writer is not None:
            self._writer.close()
            self._events.push()
        figures = self._meter.figures(self._clock.monotonic())
        best = self._best.best() if self._best is not None else None
        _LOG.info("the evaluator ends: %s", reason)
        return EvaluatorResult(reason, self._evaluated, self._metrics, figures, best)


def _load_state(path: Place) -> _State:
    try:
        return read_json(path, _State) or _State(done=[], last_step=None)
    except ConfigError as error:
        raise ConfigError(
            f"the evaluator's state {path} cannot be used: delete it to evaluate all ({error})"
        ) from error
