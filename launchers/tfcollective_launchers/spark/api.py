"""``run`` and ``run_elastic``: a function, or a command, on the executors of a Spark application, with the names that
``horovod.spark`` has for what they are given."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from tfcollective.launcher import (
    TIMING,
    ConfigError,
    UnsupportedError,
    environ_snapshot,
    function_job,
    run_with,
)
from tfcollective_launchers.spark.context import active_context
from tfcollective_launchers.spark.launcher import SparkLauncher
from tfcollective_launchers.spark.options import SparkOptions
from tfcollective_launchers.spark.prediction import predict
from tfcollective_launchers.spark.rows import Source, feed

__all__ = ["Source", "feed", "predict", "run", "run_elastic"]

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"


def run(
    fn: Callable[..., Any] | Sequence[str] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    extra_mpi_args: str | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    executable: str | None = None,
    spark: Any = None,
    data: Source | None = None,
    **job: Any,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` in ``num_proc`` tasks of a Spark application; returns what each rank returned, in
    rank order.

    Args:
        fn: what to call on every rank; or a command, such as ``["python", "train.py"]``: then ``None`` is returned for
            each rank.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: how many ranks; None: ``spark.default.parallelism`` of the application.
        start_timeout: how long (s) the tasks, and then the ranks, may take to start; None:
            ``HOROVOD_SPARK_START_TIMEOUT``, else 600.
        use_mpi: refused when true: the ranks are no processes of MPI.
        extra_mpi_args: refused.
        stdout: where to show what they print, a text stream; None: stdout of this process.
        stderr: the same of their stderr.
        verbose: 2 logs at the level ``info``.
        executable: the interpreter of the ranks; None: that of Spark's tasks.
        spark: a SparkSession or SparkContext; None: the active one, else a new one (``platform={"master": ...}``).
        data: what :func:`~tfcollective_launchers.spark.rows.feed` makes of a DataFrame: its rows, of which each rank
            reads a share with ``tfcollective.spark.dataset``; None: the ranks read their own data.
        **job: the options of the job, as for :func:`tfcollective.run`; also by the names that Horovod has for them:
            ``nics``, ``prefix_output_with_timestamp``, ``use_gloo``.

    Raises:
        As :func:`tfcollective.run`; ConfigError and UnsupportedError also for what is said above.
    """
    if use_mpi or extra_mpi_args:
        raise UnsupportedError("use_mpi, extra_mpi_args: the ranks are tasks of Spark, not processes of MPI")
    limit = _start_timeout(start_timeout)
    platform = {
        "spark": data.session if spark is None and data is not None else spark,
        "data": data,
        "allocation_timeout": limit,
        "stdout": stdout,
        "stderr": stderr,
        "executable": executable,
        **(job.pop("platform", None) or {}),
    }
    if num_proc is None and job.get("np") is None and job.get("task_specs") is None:
        num_proc = _default_ranks(platform)
    job = {"verbose": verbose > 1, **job, "num_proc": num_proc, "start_timeout": limit, "platform": platform}
    if callable(fn):
        spec = function_job(fn, args, kwargs, **job)
    else:
        if args or kwargs:
            raise ConfigError("args, kwargs: they are for a function: put a command's arguments into the command")
        spec = replace(function_job(_no_function, **job), command=_command(fn), call=None)
    outcome, results = run_with(SparkLauncher(), spec)
    return results if spec.call is not None else [None] * (spec.num_proc if spec.bounds is None else len(outcome.exits))


def run_elastic(
    fn: Callable[..., Any] | Sequence[str] | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    **job: Any,
) -> list[Any]:
    """The same for an elastic job: it continues without executors that are lost, and takes in others that Spark gives.

    Args:
        fn: as for :func:`run`; wraps its training in ``tfcollective.elastic.run``.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: with how many ranks it starts; None: ``spark.default.parallelism``.
        **job: as for :func:`run`. With how few ranks the job goes on is ``min_proc``, or ``min_num_proc`` or
            ``min_np``, by default ``num_proc``; how many it may have is ``max_proc``, ``max_num_proc`` or ``max_np``.

    Returns:
        What the ranks that were there at the end returned.
    """
    if num_proc is None:
        num_proc = _default_ranks({"spark": job.get("spark"), **(job.get("platform") or {})})
    if all(job.get(name) is None for name in ("min_proc", "min_num_proc", "min_np")):
        job["min_proc"] = num_proc
    return run(fn, args, kwargs, num_proc, **job)


def _command(words: Sequence[str]) -> tuple[str, ...]:
    """The command of every rank; ``python`` is the interpreter of its agent."""
    found = tuple(shlex.split(words)) if isinstance(words, str) else tuple(map(str, words))
    if not found:
        raise ConfigError("fn: expected a function or a command, got nothing")
    return (sys.executable, *found[1:]) if found[0] in ("python", "python3") else found


def _no_function() -> None:
    """Stands for the function of a job that runs a command."""


def _default_ranks(platform: Mapping[str, Any]) -> int:
    context = active_context(SparkOptions.of(platform))
    if context is None:
        raise ConfigError("num_proc: say how many ranks there are: no Spark application is there that would tell")
    return int(context.defaultParallelism)


def _start_timeout(given: float | None) -> float | None:
    if given is not None:
        return given
    text = environ_snapshot().get(_START_TIMEOUT)
    try:
        return TIMING.allocation if text is None else float(text)
    except ValueError as error:
        raise ConfigError(f"{_START_TIMEOUT}: expected a number of seconds, got {text!r}") from error
