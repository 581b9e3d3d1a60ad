"""The local launcher: all ranks on this machine, the coordinator in this process, one agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfcollective.errors import ConfigError
from tfcollective.launch.launcher import JobOutcome, Launcher
from tfcollective.launch.plan.planner import Plan, plan_local
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.running.agent_process import AgentProcess
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.cores import available_cores
from tfcollective.launch.system.gpus import visible_gpus
from tfcollective.launch.system.network import is_this_machine
from tfcollective.launch.system.ports import choose_endpoints
from tfcollective.launch.system.signals import forward_signals
from tfcollective.launch.system.sweep import end_processes_of
from tfcollective.log import get_logger
from tfcollective.settings import environ_snapshot

__all__ = ["LocalLauncher"]

_LOG = get_logger(__name__)
_HOST = "127.0.0.1"


class LocalLauncher(Launcher):
    """Runs jobs on this machine."""

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        elsewhere = [host.name for host in spec.hosts if not is_this_machine(host.name)]
        if elsewhere:
            raise ConfigError(f"{elsewhere[0]} is not this machine: use the launcher 'ssh'")
        if spec.cwd is not None and not Path(spec.cwd).is_dir():
            raise ConfigError(f"there is no directory {spec.cwd} for the ranks to run in (--cwd)")
        endpoints = choose_endpoints((*spec.world, *spec.auxiliary_tasks), _HOST) if spec.emit_tf_config else None
        environ = environ_snapshot()
        gpus = visible_gpus({**environ, **spec.env})
        return plan_local(spec, cores=available_cores(), environ=environ, endpoints=endpoints, gpus=gpus)

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        plan = self.plan(spec)
        with Job(spec, plan, observer=self.observer) as job:
            agent = AgentProcess.start(job.agent_config(plan.processes))
            job.watch(plan.processes, agent.send)
            _LOG.info("%s: agent is process %d", job.job_id, agent.pid)
            with forward_signals(stop_signals, agent.request_stop) as received:
                failure = agent.wait()
            if failure is not None:
                end_processes_of(job.job_id)
            return job.outcome(received, failure)
