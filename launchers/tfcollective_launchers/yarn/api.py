"""``run_on_yarn``: an experiment on YARN, with tf-yarn's names for what it is given."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

from tfcollective.launcher import (
    ConfigError,
    HostedOutcome,
    JobSpec,
    Launcher,
    UnsupportedError,
    find_launcher,
    function_job,
    run_with,
    say,
    single_server_topology,
)
from tfcollective_launchers.yarn.launcher import YarnLauncher
from tfcollective_launchers.yarn.options import YarnOptions

__all__ = ["Metrics", "run_on_yarn"]

_YARN = "yarn"


@dataclass(frozen=True)
class Metrics:
    """The results of an experiment.

    Attributes:
        total_training_duration: from the start of the first task to the end of the last one; None when unknown.
        total_eval_duration: of the evaluator's container, or None.
        container_duration: of each container, by task.
        train_eval_time_per_node: of each task of the world and of the evaluator, by task.
        results: what the experiment returned on every rank, in rank order.
        auxiliary_tasks: what evaluator and TensorBoard have published, by task.
        app_id: the application; empty on other platforms than YARN.
    """

    total_training_duration: timedelta | None
    total_eval_duration: timedelta | None = None
    container_duration: Mapping[str, timedelta | None] = field(default_factory=dict)
    train_eval_time_per_node: Mapping[str, timedelta | None] = field(default_factory=dict)
    results: tuple[Any, ...] = ()
    auxiliary_tasks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    app_id: str = ""


def run_on_yarn(
    experiment_fn: Callable[[], Any],
    task_specs: Mapping[str, Any] | None = None,
    *,
    pyenv_zip_path: str | Mapping[Any, str] | None = None,
    env: Mapping[str, str] | None = None,
    eval_monitor_log_thresholds: Mapping[str, tuple[float | None, float | None]] | None = None,
    nb_retries: int = 0,
    custom_task_module: str | None = None,
    name: str = "RunOnYarn",
    cuda_runtime_hdfs_path: str | None = None,
    launcher: str = _YARN,
    **options: Any,
) -> Metrics:
    """Runs ``experiment_fn`` on every task of a job on YARN, and returns when it has ended.

    Args:
        experiment_fn: called without arguments on every rank and on the evaluator; returns an experiment, or trains by
            itself.
        task_specs: a TaskSpec for each role; the default is :func:`tfcollective.single_server_topology`.
        pyenv_zip_path: a packed environment, or one for each node label. Without it and without ``python`` the running
            environment is packed by cluster-pack.
        env: variables for every container.
        eval_monitor_log_thresholds: for the evaluator's figures, the range in which one is worth a line at the end.
        nb_retries: how often to submit it again when it fails; errors that come again and Ctrl-C end it at once.
        custom_task_module: a module that every rank runs in place of ``experiment_fn``.
        name: what the application is called.
        cuda_runtime_hdfs_path: refused: install TensorFlow with CUDA into the environment instead.
        launcher: the platform; with ``"local"`` the same call runs on this machine, and what is YARN's is ignored.
        **options: the options of YARN, which ``docs/reference/command_line.md`` lists (``queue``, ``files``, ``acls``,
            ``file_systems``, ``pre_script_hook``, ``python``, ``docker_image``, ...), ``skein_client``, a client of
            skein's to use, and those of :func:`tfcollective.run`.

    Raises:
        ConfigError: as from :func:`tfcollective.run`, and for what is said above.
        UnsupportedError: the same.
    """
    if cuda_runtime_hdfs_path is not None:
        raise UnsupportedError(
            "cuda_runtime_hdfs_path: CUDA comes with the environment now: put tensorflow[and-cuda] into what "
            "pyenv_zip_path names, and ask for gpus in the TaskSpec"
        )
    of_yarn = [one.name for one in fields(YarnOptions) if one.name in options]
    platform = {"name": name, "archive": pyenv_zip_path, **{one: options.pop(one) for one in of_yarn}}
    specs = single_server_topology() if task_specs is None else task_specs
    options = {
        **options,
        "env": dict(env or {}),
        "max_restarts": nb_retries,
        "platform": platform if launcher == _YARN else {},
    }
    if custom_task_module is None and not callable(experiment_fn):
        raise ConfigError(f"experiment_fn: expected a function, got {experiment_fn!r}")
    spec = function_job(experiment_fn, task_specs=specs, **options)
    if custom_task_module is not None:
        spec = replace(spec, command=(sys.executable, "-m", custom_task_module), call=None)
    metrics = _run(spec, launcher)
    _log_figures(metrics, eval_monitor_log_thresholds or {})
    return metrics


def _run(spec: JobSpec, launcher: str) -> Metrics:
    """Runs the job as often as it may be tried; raises the error that ended the last attempt."""
    launching: Launcher = YarnLauncher() if launcher == _YARN else find_launcher(launcher)
    began = time.monotonic()
    outcome, results = run_with(launching, spec)
    last = launching.last if isinstance(launching, YarnLauncher) else None
    ended = HostedOutcome(outcome, (), time.monotonic() - began) if last is None else last.ended
    return _metrics("" if last is None else last.app_id, ended, tuple(results))


def _metrics(app_id: str, ended: HostedOutcome, results: tuple[Any, ...]) -> Metrics:
    times = {
        task: None if row.duration is None else timedelta(seconds=row.duration)
        for row in ended.containers
        for task in row.tasks
    }
    training = None if ended.training_s is None else timedelta(seconds=ended.training_s)
    return Metrics(
        total_training_duration=training,
        total_eval_duration=times.get("evaluator:0"),
        container_duration=times,
        train_eval_time_per_node={task: time for task, time in times.items() if not task.startswith("tensorboard")},
        results=results,
        auxiliary_tasks={end.task: end.info for end in ended.outcome.auxiliary_tasks},
        app_id=app_id,
    )


def _log_figures(metrics: Metrics, thresholds: Mapping[str, tuple[float | None, float | None]]) -> None:
    for task, info in metrics.auxiliary_tasks.items():
        groups = [group for key in ("figures", "metrics") if isinstance(group := info.get(key), Mapping)]
        figures = {name: value for group in groups for name, value in group.items()}
        for name, (low, high) in thresholds.items():
            value = figures.get(name)
            if not isinstance(value, int | float):
                continue
            if (-math.inf if low is None else low) <= value <= (math.inf if high is None else high):
                say(f"{task}: {name} {value}")
