"""The local launcher: all ranks on this machine, the coordinator in this process, one agent."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence

import psutil

from tfcollective.agent.config import AgentConfig, WorkerConfig
from tfcollective.coordinator.auth import new_key
from tfcollective.coordinator.records import JobDirectory, JobRecord, runtime_directory
from tfcollective.coordinator.server import CoordinatorServer, JobView, ServerOptions
from tfcollective.launch import function
from tfcollective.launch.agent_process import AgentProcess
from tfcollective.launch.cores import available_cores
from tfcollective.launch.launcher import JobOutcome, Launcher, StartFailure
from tfcollective.launch.planner import Plan, plan_local
from tfcollective.launch.signals import forward_signals
from tfcollective.launch.spec import JobSpec
from tfcollective.launch.sweep import end_processes_of
from tfcollective.log import get_logger
from tfcollective.settings import Settings, environ_snapshot

__all__ = ["LocalLauncher"]

_LOG = get_logger(__name__)


class LocalLauncher(Launcher):
    """Runs jobs on this machine."""

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        return plan_local(spec, cores=available_cores(), environ=environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        plan = self.plan(spec)
        job_id = f"job-{secrets.token_hex(4)}"
        environ = environ_snapshot()
        directory = runtime_directory(Settings.load(environ).runtime_dir, environ, tempfile.gettempdir())
        options = ServerOptions(job_id, new_key(), plan.tasks, spec.start_timeout)
        with JobDirectory.create(directory, job_id) as job, CoordinatorServer(options) as coordinator:
            if spec.call is not None:
                function.publish(spec.call, coordinator)
            job.publish(_record(options, coordinator, spec))
            _LOG.info("%s: coordinator at %s, records in %s", job_id, coordinator.endpoint, job.path)
            agent = AgentProcess.start(_agent_config(spec, plan, options, coordinator, job))
            _LOG.info("%s: agent is process %d", job_id, agent.pid)
            with forward_signals(stop_signals, agent.stop) as received:
                agent_failure = agent.wait()
            if agent_failure is not None:
                end_processes_of(job_id)
            results = function.collect(plan.tasks, coordinator) if spec.call is not None else {}
            outcome = _outcome(coordinator.view(), received, agent_failure)
        return JobOutcome(**{**vars(outcome), "results": results})


def _record(options: ServerOptions, coordinator: CoordinatorServer, spec: JobSpec) -> JobRecord:
    created = psutil.Process().create_time()
    return JobRecord(options.job_id, coordinator.endpoint, options.key, os.getpid(), created, spec.command)


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


def _outcome(view: JobView, received: Sequence[int], agent_failure: str | None) -> JobOutcome:
    failure = view.failure
    return JobOutcome(
        exits=tuple(task.exit for task in view.tasks if task.exit is not None),
        initialised=view.initialised,
        start_failure=None if failure is None else StartFailure(failure.message, failure.timed_out),
        stopped_by=received[0] if received else None,
        agent_failure=agent_failure,
    )
