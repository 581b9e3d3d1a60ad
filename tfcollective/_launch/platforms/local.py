"""The local launcher: all ranks on this machine, the coordinator in this process, one agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfcollective._base.addresses import is_own_host
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._base.machine.cores import available_cores
from tfcollective._base.machine.gpus import visible_gpus
from tfcollective._base.machine.network import choose_address, interface_addresses
from tfcollective._base.settings import environ_snapshot
from tfcollective._base.timeline import check_writable
from tfcollective._launch.launcher import Capabilities, JobOutcome, Launcher
from tfcollective._launch.nodes.provider import NodeKind
from tfcollective._launch.plan.planner import Plan, plan_local
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.commands import CommandProvider, own_agent
from tfcollective._launch.run import run_job_on

_HOST = "127.0.0.1"
_LOG = get_logger(__name__)


class LocalLauncher(Launcher):
    """Runs jobs on this machine."""

    capabilities = Capabilities(
        start="processes on this machine",
        logs="live, each line with its rank; `--log-dir`",
        gpus="all of the node, or `--gpus-per-proc`",
        elastic="lost ranks are replaced, from a process kept ready",
        preemption="SIGTERM to a rank; `--preemption-file`, `--preemption-command`",
        restart="`--max-restarts`",
        secrets="the agent's standard input",
        evaluator="beside the ranks",
    )

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        if spec.discovery:
            raise ConfigError("discovery: a script may name other hosts than this one: use the launcher 'ssh'")
        elsewhere = [host.name for host in spec.hosts if not is_own_host(host.name)]
        if elsewhere:
            raise ConfigError(f"{elsewhere[0]} is not this machine: use the launcher 'ssh'")
        if spec.cwd is not None and not Path(spec.cwd).is_dir():
            raise ConfigError(f"--cwd: the directory {spec.cwd} does not exist")
        environ = environ_snapshot()
        gpus = visible_gpus({**environ, **spec.rank_env})
        return plan_local(spec, cores=available_cores(), environ=environ, gpus=gpus)

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        plan = self.plan(spec)
        if spec.timeline is not None:  # rank 0 would find out only when the job has begun
            check_writable(Path(spec.cwd or "", spec.timeline))
        _note_interfaces(spec)
        # Or the agent would look for an interface. All names of this machine are one host: that of the plan.
        spec = replace(spec, network_interfaces=(), hosts=())
        commands = {host: own_agent() for host in plan.hosts}
        return run_job_on(
            lambda job: CommandProvider(commands, commands, whole_lines=False, kind=NodeKind.HERE),
            spec,
            plan,
            bind_host=_HOST,
            observers=self.observers,
            stop_signals=stop_signals,
        )


def _note_interfaces(spec: JobSpec) -> None:
    """A job on this machine needs no interface; one that does not exist is a mistake all the same."""
    if not spec.network_interfaces:
        return
    try:
        choose_address(interface_addresses(), spec.network_interfaces)
    except ConfigError as error:
        _LOG.warning("--network-interface: %s. All ranks are on this machine and do not need one", error)
