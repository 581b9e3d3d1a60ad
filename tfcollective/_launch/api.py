"""``tfcollective.run``: call a function on several processes and get what each returned."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tfcollective._base import payload
from tfcollective._base.errors import ConfigError, LaunchError, RendezvousError, WorkerFailedError
from tfcollective._base.processes import program_of
from tfcollective._base.settings import Settings, environ_snapshot, without_outer_job
from tfcollective._base.verdict import in_order_of_arrival
from tfcollective._launch.horovod_run import translate
from tfcollective._launch.launcher import JobOutcome, Launcher, find_launcher
from tfcollective._launch.plan.build import build_job, read_options
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.report import render
from tfcollective._launch.restarts import run_job
from tfcollective._launch.running.function import make_call


class Results(list[Any]):
    """The ranks' results, in rank order.

    Attributes:
        auxiliary_tasks: what each auxiliary task has published, by task: the ``figures`` and ``metrics`` of
            ``evaluator:0``, the ``url`` of ``tensorboard:0``. Empty for one that failed before it had anything to say.
    """

    def __init__(self, results: Iterable[Any], auxiliary_tasks: Mapping[str, Mapping[str, object]]) -> None:
        super().__init__(results)
        self.auxiliary_tasks = dict(auxiliary_tasks)


def run(
    fn: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    launcher: str = "local",
    task_specs: Mapping[str, Any] | None = None,
    nb_retries: int | None = None,
    **options: Any,
) -> Results:
    """Calls ``fn(*args, **kwargs)`` in ``np`` new processes and returns the list of the results, in rank order.

    What the function returns may be an experiment, such as ``tfcollective.keras.KerasExperiment``: then every rank
    trains it, and the result is that of the training. A plain function calls ``tfcollective.init()`` itself, as a
    script does. The function, its arguments and its results are pickled with cloudpickle.

    ``task_specs`` may have an evaluator and a TensorBoard: auxiliary tasks outside the world, whose failures do not
    stop training. The evaluator calls the function, too, and evaluates the experiment that it returns; a plain function
    finds in ``tfcollective.task()`` that it is the evaluator. They end after training: :class:`Results` tells what
    they found.

    Works from any thread; Ctrl-C in the main thread ends the processes and raises KeyboardInterrupt.

    Args:
        fn: what to call on every rank.
        args: its positional arguments.
        kwargs: its keyword arguments.
        np: the number of processes, all of them workers; 1 when omitted.
        launcher: the platform to run on; ``local`` is this machine, or ``ssh`` if ``hosts`` are others, or ``mpi`` with
            ``engine="mpi"``.
        task_specs: in place of ``np``: a TaskSpec for each role, see ``tfcollective.allreduce_topology``. On this
            machine the numbers of instances and processes count, and TensorBoard's fields; memory, vcores, gpus and
            labels are for platforms that give them out.
        nb_retries: another name for ``max_restarts``: how often all ranks are started again when one fails. Errors that
            come again (a wrong argument, a module that is not found) and Ctrl-C end the job at once. The ranks go on
            from their checkpoints: see ``tfcollective.keras.BackupAndRestore``; a ``KerasExperiment`` does so itself.
        **options: the options of a job, which ``docs/reference/job_options.md`` lists, as values or as the command line
            has them: ``min_proc=2``, ``hosts="host1:4,host2:4"``, ``port_range="29500-29600"``. With ``min_proc`` the
            job goes on without ranks that are lost, and the results are those of the ranks at its end. ``platform`` is
            a mapping of settings for other launchers than ``local``. ``horovod.run``'s names are understood, too:
            ``func``, ``num_proc``, ``min_num_proc``, ``max_num_proc``, ``host_discovery_script``, ``hostfile``,
            ``output_filename``, ``ssh_port``, ``ssh_identity_file``, ``network_interface``, ``executable``,
            ``verbose``.

    Raises:
        WorkerFailedError: a rank failed; the message holds its traceback, ``first`` and ``failures`` the records.
        LaunchError: the job could not be started.
        RendezvousError: the platform did not give all that the job needs in time.
        ConfigError: an option that is unknown, or an option or variable that cannot be used.
        InvalidArgumentError: the function cannot be pickled.
        UnsupportedError: an elastic job on a launcher that cannot run it.
    """
    function = _function(fn, options.pop("func", None))
    options = with_granted_hosts(launcher, options)
    spec = function_job(function, args, kwargs, np, task_specs=task_specs, nb_retries=nb_retries, **options)
    return run_function_job(spec, launcher)


def with_granted_hosts(launcher: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the hosts that the platform has given to this process, unless they name some."""
    if launcher == "local" or options.get("hosts") or options.get("hostfile"):
        return dict(options)
    return {**options, "hosts": find_launcher(launcher).granted_hosts()}


def run_function_job(spec: JobSpec, launcher: str) -> Results:
    """Runs what :func:`function_job` made, as :func:`run` does."""
    return run_with(find_launcher(_launcher_for(spec) if launcher == "local" else launcher), spec)[1]


def run_with(launcher: Launcher, spec: JobSpec) -> tuple[JobOutcome, Results]:
    """Runs a job and returns its outcome and results; raises as :func:`run` does. Ranks of a command have no results.
    Ctrl-C in the main thread ends it."""
    main_thread = threading.current_thread() is threading.main_thread()
    outcome = run_job(launcher, spec, stop_signals=(signal.SIGINT,) if main_thread else ())
    if spec.call is not None:
        return outcome, results_of(outcome, results_wanted(spec, outcome))
    failed = tuple(record for record in outcome.exits if record.failed)
    return outcome, results_of(replace(outcome, exits=failed, results={}), 0)


def _function(fn: Callable[..., Any] | None, func: Callable[..., Any] | None) -> Callable[..., Any]:
    """Returns ``fn`` or ``func``, whichever was passed."""
    given = [one for one in (fn, func) if one is not None]
    if len(given) != 1:
        raise ConfigError("give the function to call once: as fn, or as func, which is Horovod's name for it")
    if not callable(given[0]):
        raise ConfigError(f"fn: expected a function, got {given[0]!r}; to start a script, use `tfcollective run`")
    return given[0]


def function_job(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    task_specs: Mapping[str, Any] | None = None,
    nb_retries: int | None = None,
    **options: Any,
) -> JobSpec:
    """The job that :func:`run` runs; raises ConfigError and InvalidArgumentError as it does."""
    options = translate({"np": np, **options, "task_specs": task_specs, "nb_retries": nb_retries})
    python = options.pop("executable", None) or sys.executable
    return build_job(
        (python, *program_of("tfcollective._launch.running.function")),
        read_options(options),
        Settings.load(without_outer_job(environ_snapshot())),
        size=1,
        call=make_call(fn, args, kwargs or {}, sys.path),
    )


def _launcher_for(spec: JobSpec) -> str:
    if spec.engine == "mpi":
        return "mpi"
    return "ssh" if spec.discovery or any(not host.is_this_machine for host in spec.hosts) else "local"


def results_wanted(spec: JobSpec, outcome: JobOutcome) -> int:
    """Returns how many ranks must have a result. In an elastic job, some may have left before its end."""
    return spec.num_proc if spec.bounds is None else len(outcome.results)


def results_of(outcome: JobOutcome, count: int) -> Results:
    """Returns the results of a job's function on ``count`` ranks; if the job failed, raises what :func:`run` does."""
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt
    cause = outcome.judge().first
    if cause is not None:
        failed = [asdict(record) for record in in_order_of_arrival(outcome.exits)]
        raise WorkerFailedError(render(outcome), failures=failed, first=asdict(cause))
    if outcome.start_failure is not None:
        raise RendezvousError(render(outcome) if outcome.earlier else outcome.start_failure.message)
    tasks = sorted(outcome.exits, key=lambda record: record.rank)
    if outcome.agent_failure is not None or len(outcome.results) != count:
        without = ", ".join(str(record.rank) for record in tasks if record.task not in outcome.results)
        if outcome.agent_failure is None:
            raise LaunchError(f"ended without leaving a result: rank {without}")
        raise LaunchError(render(outcome) if outcome.earlier else outcome.agent_failure)
    report = render(outcome)  # after a success: of auxiliary tasks
    if report:
        sys.stderr.write("".join(f"tfcollective: {line}\n" for line in report.splitlines()))
    results = [payload.loads(outcome.results[record.task]) for record in tasks if record.task in outcome.results]
    return Results(results, {end.task: end.info for end in outcome.auxiliary_tasks})
