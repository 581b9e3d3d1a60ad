"""Tells MLflow about a job, where a tracking URI is set. Nothing here can break a job, or hold it up for long."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.version import __version__
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._launch.launcher import JobOutcome, Launcher
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.report import exit_code, render

_LOG = get_logger(__name__)
_URI = "MLFLOW_TRACKING_URI"
_RUN = "MLFLOW_RUN_ID"
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_FLUSH_S = 10.0
_PREFIX = "tfcollective."

_Work = Callable[["_Run"], None]


@contextlib.contextmanager
def tracking(launcher: Launcher, spec: JobSpec, flush: float = _FLUSH_S) -> Iterator[Callable[[JobOutcome], None]]:
    """Reports the launcher's job to MLflow, if it is used, while the context is open; yields what takes the outcome.
    The end waits ``flush`` seconds at most for a server that does not answer.
    """
    tracker = _find_tracker()
    if tracker is None:
        yield lambda outcome: None
        return
    tracker.begin(parameters_of(spec, type(launcher).__name__))
    try:
        with launcher.observed_by(tracker.observe):
            yield tracker.end
    finally:
        tracker.close(flush)


def parameters_of(spec: JobSpec, launcher: str) -> dict[str, object]:
    """Returns the parameters of a job: no command and no environment, which may hold secrets."""
    roles = {f"instances.{role}": one.instances for role, one in spec.task_specs.items()}
    shown = {
        "version": __version__,
        "launcher": launcher,
        "num_proc": spec.num_proc,
        "transport": spec.transport,
        "op_timeout": spec.op_timeout,
        "max_restarts": spec.max_restarts,
        **roles,
    }
    return {_PREFIX + name: value for name, value in shown.items()}


def metrics_of(info: Mapping[str, object]) -> tuple[int, dict[str, float]]:
    """(training step, numbers by name) of what a task has published; empty when there are none.

    An evaluator's figures keep their names; its metrics are called ``eval.NAME``.
    """
    figures, metrics = info.get("figures"), info.get("metrics")
    if isinstance(figures, Mapping):
        found = {**figures, **{f"eval.{name}": value for name, value in _mapping(metrics).items()}}
        step = figures.get("last_training_step")
    else:
        found = {"steps_per_second": info.get("steps_per_second")}
        step = info.get("step")
    return step if isinstance(step, int) else 0, {name: value for name, value in found.items() if _is_number(value)}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _find_tracker() -> MlflowTracker | None:
    environ = environ_snapshot()
    loaded = sys.modules.get("mlflow")
    if not (environ.get(_URI) or (loaded is not None and loaded.is_tracking_uri_set())):
        return None
    if not Settings.load(environ).mlflow:
        return None
    if importlib.util.find_spec("mlflow") is None:
        _LOG.warning("%s is set, but MLflow is not installed: pip install 'tfcollective[mlflow]'", _URI)
        return None
    return MlflowTracker(environ)


class MlflowTracker:
    """A run of MLflow's, in a thread of its own: its callers never wait for the server.

    The run is the one that ``MLFLOW_RUN_ID`` or the program has opened, else a new one, which ends with the job.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._logged: dict[str, object] = {}
        self._thread = threading.Thread(target=self._serve, name="tfc-mlflow", daemon=True)

    def begin(self, parameters: Mapping[str, object]) -> None:
        """The job begins."""
        self._thread.start()
        self._work.put(lambda run: run.parameters(parameters))

    def observe(self, job: JobSnapshot) -> None:
        """Reports the state of the job; what has not changed since is not sent again."""
        self._note({str(task.task): task.info for task in (*job.tasks[:1], *job.auxiliary_tasks)})

    def end(self, outcome: JobOutcome) -> None:
        """Reports the end of the job."""
        self._note({**outcome.published, **{end.task: end.info for end in outcome.auxiliary_tasks}})
        failed = exit_code(outcome) != 0
        status = "KILLED" if outcome.stopped_by is not None else "FAILED" if failed else "FINISHED"
        durations = {f"duration_s.{task}".replace(":", "."): seconds for task, seconds in outcome.durations.items()}
        report = {"status": status, "restarts": list(outcome.earlier), "report": render(outcome)}
        self._work.put(lambda run: run.metrics(0, {**durations, "restarts": float(len(outcome.earlier))}))
        self._work.put(lambda run: run.document({**report, "durations_s": dict(outcome.durations)}))
        self._work.put(lambda run: run.end(status))

    def close(self, flush: float) -> None:
        """Waits until all is sent, ``flush`` seconds at most."""
        self._work.put(None)
        self._thread.join(flush)
        if self._thread.is_alive():
            _LOG.warning("MLflow has not taken everything within %g s: the rest is not kept", flush)

    def _note(self, published: Mapping[str, Mapping[str, object]]) -> None:
        for task, info in published.items():
            step, numbers = metrics_of(info)
            url = info.get("url")
            if numbers and self._logged.get(task) != (step, numbers):
                self._logged[task] = (step, numbers)
                self._work.put(lambda run, step=step, numbers=numbers: run.metrics(step, numbers))  # type: ignore[misc]
            if isinstance(url, str) and self._logged.get(f"{task} url") != url:
                self._logged[f"{task} url"] = url
                self._work.put(lambda run, url=url: run.tag("tensorboard.url", url))  # type: ignore[misc]

    def _serve(self) -> None:
        run: _Run | None = None
        troubled = False
        while (work := self._work.get()) is not None:
            try:
                if run is None and not troubled:
                    run = _Run.open(self._environ)
                if run is not None:
                    work(run)
            except Exception as error:  # noqa: BLE001  # a server, its client and its plug-ins may raise anything
                if not troubled:
                    _LOG.warning("MLflow does not hear of this job, or not of all: %s: %s", type(error).__name__, error)
                troubled = True


class _Run:
    """A run of MLflow's; every method raises what MLflow raises."""

    def __init__(self, client: Any, run_id: str, *, ours: bool) -> None:
        self._client = client
        self._run_id = run_id
        self._ours = ours

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> _Run:
        import mlflow

        client = mlflow.MlflowClient()
        active = mlflow.active_run()
        given = environ.get(_RUN) or (active.info.run_id if active is not None else None)
        if given:
            return cls(client, given, ours=False)
        name = environ.get(_EXPERIMENT) or "Default"
        experiment = client.get_experiment_by_name(name)
        number = client.create_experiment(name) if experiment is None else experiment.experiment_id
        return cls(client, client.create_run(number).info.run_id, ours=True)

    def parameters(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self._client.log_param(self._run_id, name, value)

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run_id, name, float(value), step=step)

    def tag(self, name: str, value: str) -> None:
        self._client.set_tag(self._run_id, name, value)

    def document(self, report: Mapping[str, object]) -> None:
        self._client.log_dict(self._run_id, dict(report), "tfcollective/report.json")

    def end(self, status: str) -> None:
        if self._ours:
            self._client.set_terminated(self._run_id, status)
