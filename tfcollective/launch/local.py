"""The local launcher: all ranks on this machine, the coordinator in this process, one agent."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence

import psutil

from tfcollective.agent.config import AgentConfig, KillCommand, WorkerConfig
from tfcollective.coordinator.auth import new_key
from tfcollective.coordinator.records import JobDirectory, JobRecord, start_ticks
from tfcollective.coordinator.server import CoordinatorServer, ServerOptions
from tfcollective.coordinator.service import JobView
from tfcollective.errors import LaunchError
from tfcollective.launch import function
from tfcollective.launch.agent_process import AgentProcess
from tfcollective.launch.cores import available_cores
from tfcollective.launch.launcher import JobOutcome, Launcher, StartFailure
from tfcollective.launch.planner import Plan, plan_local
from tfcollective.launch.signals import forward_signals
from tfcollective.launch.spec import JobSpec
from tfcollective.launch.sweep import end_processes_of
from tfcollective.launch.tf_config import choose_endpoints
from tfcollective.log import get_logger
from tfcollective.private_directory import runtime_directory
from tfcollective.settings import Settings, environ_snapshot
from tfcollective.tasks import TaskKey, workers

__all__ = ["LocalLauncher"]

_LOG = get_logger(__name__)
# A rank beats every two seconds; a collective that waits for a stopped rank has timed out by then.
_SILENCE_MARGIN_S = 10.0
_HOST = "127.0.0.1"


class LocalLauncher(Launcher):
    """Runs jobs on this machine."""

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        endpoints = choose_endpoints(workers(spec.num_proc), _HOST) if spec.emit_tf_config else None
        return plan_local(spec, cores=available_cores(), environ=environ_snapshot(), endpoints=endpoints)

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        plan = self.plan(spec)
        job_id = f"job-{secrets.token_hex(4)}"
        environ = environ_snapshot()
        directory = runtime_directory(Settings.load(environ).runtime_dir, environ, tempfile.gettempdir())
        options = ServerOptions(
            job_id, new_key(), plan.tasks, spec.start_timeout, silence_limit=spec.op_timeout + _SILENCE_MARGIN_S
        )
        silence = _SilenceWatch(options.silence_limit)
        with (
            JobDirectory.create(directory, job_id) as job,
            CoordinatorServer(options, on_silent=silence.found) as coordinator,
        ):
            if spec.call is not None:
                function.publish(spec.call, coordinator)
            job.publish(_record(options, coordinator, spec))
            _LOG.info("%s: coordinator at %s, records in %s", job_id, coordinator.endpoint, job.path)
            agent = AgentProcess.start(_agent_config(spec, plan, options, coordinator, job))
            silence.agent = agent
            _LOG.info("%s: agent is process %d", job_id, agent.pid)
            with forward_signals(stop_signals, agent.stop) as received:
                agent_failure = agent.wait()
            if agent_failure is not None:
                end_processes_of(job_id)
            results = function.collect(plan.tasks, coordinator) if spec.call is not None else {}
            view = coordinator.view()
            return _outcome(view, received, agent_failure or _unreported(view), results)


class _SilenceWatch:
    """Has a rank killed that no longer answers: it would keep the job alive for ever."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.agent: AgentProcess | None = None

    def found(self, task: TaskKey) -> None:
        """Called on the coordinator's thread; a rank can be silent only after the agent has started it."""
        if self.agent is not None:
            reason = f"gave no sign of life for {self._limit:g} s (stopped?) and was killed"
            self.agent.send(KillCommand(str(task), reason))


def _record(options: ServerOptions, coordinator: CoordinatorServer, spec: JobSpec) -> JobRecord:
    pid = os.getpid()
    ticks = start_ticks(pid)
    if ticks is None:
        raise LaunchError("/proc does not tell when this process started: is it mounted?")
    created = psutil.Process().create_time()
    return JobRecord(options.job_id, coordinator.endpoint, options.key, pid, ticks, created, spec.command)


def _agent_config(
    spec: JobSpec, plan: Plan, options: ServerOptions, coordinator: CoordinatorServer, job: JobDirectory
) -> AgentConfig:
    return AgentConfig(
        job_id=options.job_id,
        coordinator=str(coordinator.endpoint),
        key=options.key.hex(),
        workers=tuple(WorkerConfig(str(worker.task), worker.rank, worker.argv, worker.env) for worker in plan.workers),
        scratch_dir=str(job.path),
        cwd=spec.cwd,
        log_dir=spec.log_dir,
        prefix=spec.prefix,
        log_level=spec.log_level,
    )


def _unreported(view: JobView) -> str | None:
    """What to say of ranks whose end nobody has reported: they must not pass for a success."""
    silent = ", ".join(f"rank {task.rank} ({task.task})" for task in view.tasks if task.exit is None)
    return f"nobody has reported how {silent} ended: the launcher may have been stopped meanwhile" if silent else None


def _outcome(
    view: JobView, received: Sequence[int], agent_failure: str | None, results: Mapping[str, bytes]
) -> JobOutcome:
    failure = view.failure
    return JobOutcome(
        exits=tuple(task.exit for task in view.tasks if task.exit is not None),
        initialised=view.initialised,
        start_failure=None if failure is None else StartFailure(failure.message, failure.timed_out),
        stopped_by=received[0] if received else None,
        agent_failure=agent_failure,
        results=results,
    )
