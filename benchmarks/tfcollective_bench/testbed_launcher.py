"""Our jobs on the hosts of a :mod:`~tfcollective_bench.testbed` testbed: an agent each, the coordinator on the bridge.

    python -m tfcollective_bench.testbed_launcher GATEWAY NAMESPACE=ADDRESS,... -m MODULE [ARGUMENTS...]

starts one rank on every host; its exit code is that of ``tfcollective run``.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from tfcollective._base.errors import ConfigError
from tfcollective._base.machine.cores import available_cores
from tfcollective._base.settings import Settings, environ_snapshot, variable
from tfcollective._launch.launcher import JobOutcome, Launcher
from tfcollective._launch.nodes.provider import NodeKind
from tfcollective._launch.plan.planner import Plan, plan_local
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.commands import CommandProvider, own_agent
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.run import run_job_on

__all__ = ["NetnsLauncher", "main", "plan_testbed"]


class NetnsLauncher(Launcher):
    """Runs jobs on the hosts of a test bed.

    Args:
        gateway: the address of this side of the bridge.
        hosts: (namespace, address) of the hosts; ranks are dealt to them in turn, equally many to each.
    """

    def __init__(self, gateway: str, hosts: Sequence[tuple[str, str]]) -> None:
        self._gateway = gateway
        self._hosts = tuple(hosts)

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        plan = plan_local(spec, cores=available_cores(), environ=environ_snapshot())
        return plan_testbed(plan, [address for _, address in self._hosts])

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`. The first agent that failed is reported."""
        commands = {address: ("ip", "netns", "exec", namespace, *own_agent()) for namespace, address in self._hosts}
        return run_job_on(
            lambda job: CommandProvider(commands, commands, whole_lines=False, kind=NodeKind.HERE),
            spec,
            self.plan(spec),
            bind_host=self._gateway,
            stop_signals=stop_signals,
        )


def plan_testbed(plan: Plan, addresses: Sequence[str]) -> Plan:
    """The plan with its ranks dealt to hosts with these addresses; ConfigError unless equally many come to each."""
    if not addresses or len(plan.workers) % len(addresses):
        raise ConfigError(f"{len(plan.workers)} ranks cannot be shared out equally to {len(addresses)} hosts")
    per_host = len(plan.workers) // len(addresses)
    workers = [
        replace(
            worker,
            local_rank=worker.rank % per_host,
            host=addresses[worker.rank // per_host],
            env={**worker.env, variable("bind_host"): addresses[worker.rank // per_host]},
        )
        for worker in plan.workers
    ]
    return replace(plan, workers=tuple(workers))


def main() -> int:
    """Runs the module on all hosts; returns the exit code."""
    gateway, hosts, flag, module, *arguments = sys.argv[1:]
    pairs = [(name, address) for name, _, address in (host.partition("=") for host in hosts.split(","))]
    command = (sys.executable, flag, module, *arguments)
    asked = Settings.load()
    spec = JobSpec(
        command=command,
        num_proc=len(pairs),
        prefix=False,
        timeline=asked.timeline,
        data_parallel=asked.data_parallel,
    )
    outcome = NetnsLauncher(gateway, pairs).run(spec, stop_signals=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    text = render(outcome)
    if text:
        sys.stderr.write(f"{text}\n")
    return exit_code(outcome)


if __name__ == "__main__":
    sys.exit(main())
