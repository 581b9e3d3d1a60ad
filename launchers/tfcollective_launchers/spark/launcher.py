"""Runs a job in an application of Spark, with the coordinator in its driver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfcollective.launcher import (
    Assignment,
    Capabilities,
    CheckedLauncher,
    ConfigError,
    Enrolment,
    Finding,
    Host,
    Job,
    JobOutcome,
    JobSpec,
    Launcher,
    NodeFacts,
    OutputFollower,
    Plan,
    UnsupportedError,
    all_enrolled,
    client_of,
    environ_snapshot,
    is_own_host,
    own_address,
    plan_hosts,
    run_job_on,
    share_out,
)
from tfcollective_launchers.spark.check import findings
from tfcollective_launchers.spark.context import OwnContext, active_context, check_context, driver_address, make_context
from tfcollective_launchers.spark.options import SparkOptions
from tfcollective_launchers.spark.provider import SparkProvider

_TASK = "task-"
_TASK_CPUS = "spark.task.cpus"
_MAX_SCRIPT_BYTES = 1 << 19  # with 1 MiB, Spark puts what tasks are given, and the job key, into a file


class SparkLauncher(Launcher, CheckedLauncher):
    """A task of Spark for each rank: those of a barrier stage, or, for an elastic job, of one stage each."""

    options = SparkOptions
    else_ranks = ""
    capabilities = Capabilities(
        start="tasks of an application, which Spark starts together (barrier execution mode)",
        logs="live, each line with its rank, and in the executors' logs",
        gpus="those of the task (`spark.task.resource.gpu.amount`)",
        elastic="lost executors are replaced when Spark has others; up to `--max-np`",
        preemption="SIGTERM to the agent or a rank; `--preemption-file`, `--preemption-command`",
        restart="`--max-restarts`, in the same application",
        secrets="the function of the tasks, as Spark's own code, then a pipe",
        evaluator="in the first rank's task",
    )

    def __init__(self) -> None:
        self._made: OwnContext | None = None

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        return _planned(on_tasks(spec))

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = SparkOptions.of(spec.platform)
        spec = on_tasks(spec)
        if options.data is not None and spec.bounds is not None:
            raise UnsupportedError("data: an elastic job reads its own data: its tasks come and go, and rows with them")
        context = self._context(options, spec)
        check_context(context)
        spec, files = _with_script(spec)

        def provide(job: Job) -> SparkProvider:
            client = client_of(job, 1)  # the follower closes it
            return SparkProvider(
                context,
                job.job_id,
                files=files,
                separate=spec.bounds is not None,
                submit=None if options.data is None else options.data.run_tasks,
                executable=options.executable,
                output=OutputFollower(client, options.stdout, options.stderr),
                enrolled=lambda: all_enrolled(client),
            )

        return run_job_on(
            provide,
            spec,
            _planned(spec),
            bind_host=_bind_host(spec, context),
            enrolment=Enrolment(
                [host.name for host in spec.hosts[: spec.num_proc]],
                lambda found: assigned(found, spec),
                options.allocation_timeout,
                options.port,
            ),
            observers=self.observers,
            stop_signals=stop_signals,
        )

    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """See :class:`CheckedLauncher`."""
        return findings(SparkOptions.of(platform))

    def close(self) -> None:
        """See :class:`Launcher`."""
        made, self._made = self._made, None
        if made is not None:
            made.stop()

    def _context(self, options: SparkOptions, spec: JobSpec) -> Any:
        """The user's SparkContext, or one for this job and its restarts."""
        found = active_context(options)
        if found is None:
            self._made = make_context(options, len(spec.hosts) * cores_of_task(options))
            found = self._made.context
        return found


def _planned(spec: JobSpec) -> Plan:
    return plan_hosts(spec, share_out(spec.hosts, spec.num_proc), environ_snapshot())


def cores_of_task(options: SparkOptions) -> int:
    """Returns the number of cores that Spark gives a task."""
    text = options.conf.get(_TASK_CPUS, "1")
    if not text.isdigit() or not int(text):
        raise ConfigError(f"conf: {_TASK_CPUS}: expected 1 or more, got {text!r}")
    return int(text)


def on_tasks(spec: JobSpec) -> JobSpec:
    """The job with its tasks as hosts of one slot each. A spare would take its memory from the executor's."""
    spec.refuse_hosts("Spark", "spark", "see spark.excludeOnFailure")
    most = spec.num_proc if spec.bounds is None else max(spec.num_proc, spec.max_proc or 0)
    return replace(spec, hosts=tuple(Host(f"{_TASK}{number}", 1) for number in range(most)), warm_spares=False)


def _with_script(spec: JobSpec) -> tuple[JobSpec, dict[str, bytes]]:
    """A script of the command goes with the tasks, whose working directory is one of Spark's. Not as one of the
    application's files: every later task would need it, and none of its name could ever be another one."""
    script = spec.local_script()
    if script is None:
        return spec, {}
    contents = script.read_bytes()
    if len(contents) > _MAX_SCRIPT_BYTES:
        raise ConfigError(f"{script} has {len(contents)} bytes, more than {_MAX_SCRIPT_BYTES}: put it on every node")
    name = f"tfcollective-{hashlib.sha256(contents).hexdigest()[:16]}/{script.name}"
    return spec.with_script(name), {name: contents}


def _bind_host(spec: JobSpec, context: Any) -> str:
    """Returns the coordinator's address: on the interface that is wanted, else where executors reach Spark's driver."""
    if not spec.network_interfaces:
        address = driver_address(context)
        if address is not None and is_own_host(address):
            return address
    return own_address(spec.network_interfaces)


def assigned(found: Sequence[NodeFacts], spec: JobSpec) -> Assignment:
    """The ranks in the order of the hosts that Spark has chosen, so that neighbours share one; those of an elastic job
    for which no task has come stay without."""
    number = {host.name: place for place, host in enumerate(spec.hosts)}
    ordered = sorted(found, key=lambda one: (one.host, number[one.name]))
    here = [one.name for one in ordered]
    names = [*here, *(host.name for host in spec.hosts if host.name not in here)][: spec.num_proc]
    plan = plan_hosts(spec, share_out([Host(name, 1) for name in names], spec.num_proc), environ_snapshot())
    return Assignment(plan, tuple((facts, plan.on(facts.name)) for facts in ordered), spec.hosts)
