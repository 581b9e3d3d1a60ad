"""Runs a job on hosts that ssh reaches; hosts that are this machine need no ssh."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tfcollective.codec import encode_line
from tfcollective.errors import ConfigError, LaunchError
from tfcollective.launch.launcher import JobOutcome, Launcher
from tfcollective.launch.nodes.launcher_side import Facts, Node, client_of, enrolled, run_on_nodes
from tfcollective.launch.nodes.protocol import NodeSettings
from tfcollective.launch.plan.hosts import share_out
from tfcollective.launch.plan.planner import Plan, plan_hosts, with_tf_config
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.network import choose_address, interface_addresses, is_this_machine, own_address
from tfcollective.log import get_logger
from tfcollective.settings import environ_snapshot
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint
from tfcollective_launchers.ssh.command import SshOptions, accepting_new_keys, ssh_command
from tfcollective_launchers.ssh.node_process import NodeProcess
from tfcollective_launchers.ssh.preflight import Visitor, ask_all

__all__ = ["SshLauncher", "meeting_address"]

_LOG = get_logger(__name__)
_ENROLL_S = 60.0  # at least: it takes a while to start Python, also where ranks are to be fast
_POLL_S = 0.5
# Not `-m`, which looks into the directory where it happens to be first: a file there may be called like a module.
_PROGRAM = "import sys; del sys.path[0]; from tfcollective.cli import main; sys.exit(main())"
_AGENT = ("-c", _PROGRAM, "agent", "--join", "-")


class SshLauncher(Launcher):
    """An agent on every host of ``spec.hosts``."""

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        if not spec.hosts:
            raise ConfigError("the launcher 'ssh' needs hosts, for example host1:4,host2:4")
        return plan_hosts(spec, share_out(spec.hosts, spec.num_proc), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = SshOptions.from_platform(spec.platform)
        spec = spec if spec.cwd is not None else replace(spec, cwd=os.getcwd())  # noqa: PTH109  a text is wanted
        plan = self.plan(spec)
        remote = accepting_new_keys(options, [host for host in plan.hosts if not is_this_machine(host)])
        commands = {host: _command(host, remote.get(host)) for host in plan.hosts}
        visitors = ask_all(remote, str(spec.cwd))
        bind_host = meeting_address(visitors, interface_addresses(), spec.network_interfaces)
        with (
            Job(spec, plan, bind_host=bind_host, observer=self.observer) as job,
            client_of(job, len(commands)) as client,
            _started(commands, job, plan, spec) as processes,
        ):
            found = _gather(lambda have: enrolled(client, _POLL_S, have), processes, _patience(spec))
            facts = {one.name: one for one in found}
            nodes = {
                host: Node(facts[host], client, process.write, process.kill) for host, process in processes.items()
            }
            if spec.emit_tf_config:
                plan = with_tf_config(plan, _endpoints(plan, facts))
                job.replace_plan(plan)
            return run_on_nodes(job, plan, nodes, sys.executable, stop_signals)


def meeting_address(visitors: Sequence[Visitor], interfaces: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> str:
    """Where the coordinator listens: on the interface that is ``wanted``, else where the first host sees us.

    Raises ConfigError when that is no address of ours: something on the way translates addresses.
    """
    if wanted:
        return choose_address(interfaces, wanted)
    if not visitors:
        return own_address(())
    seen = visitors[0].our_address
    if not any(seen in addresses for addresses in interfaces.values()):
        raise ConfigError(
            f"{visitors[0].host} sees this machine as {seen or 'nobody'}, which no interface here has: "
            "say with --network-interface which one the hosts can reach"
        )
    return seen


def _endpoints(plan: Plan, facts: Mapping[str, Facts]) -> dict[TaskKey, Endpoint]:
    """Where each process may listen: on its host's address, at one of the ports that the host has named."""
    free = {host: iter(facts[host].ports) for host in plan.hosts}
    return {one.task: Endpoint(facts[one.host].address, next(free[one.host])) for one in plan.processes}


def _command(host: str, options: SshOptions | None) -> tuple[str, ...]:
    """What runs the agent: ssh with these options, or on this machine, which has none, the agent itself."""
    if options is None:
        return (sys.executable, *_AGENT)
    return ssh_command(host, options, [options.python, *_AGENT])


@contextlib.contextmanager
def _started(
    commands: Mapping[str, Sequence[str]], job: Job, plan: Plan, spec: JobSpec
) -> Iterator[dict[str, NodeProcess]]:
    """An agent on every host, while the block runs; none afterwards."""
    processes: dict[str, NodeProcess] = {}
    try:
        for host, command in commands.items():
            processes[host] = NodeProcess.start(command)
            settings = NodeSettings(
                job.coordinator,
                job.key.hex(),
                host,
                spec.network_interfaces,
                patience=_patience(spec),
                ports=len(plan.on(host)) if spec.emit_tf_config else 0,
            )
            processes[host].write(encode_line(settings))
        yield processes
    finally:
        for process in processes.values():
            process.close()
        for process in processes.values():
            process.wait()


def _patience(spec: JobSpec) -> float:
    return max(_ENROLL_S, spec.start_timeout)


def _gather(
    ask: Callable[[int], Sequence[Facts]], processes: Mapping[str, NodeProcess], patience: float
) -> Sequence[Facts]:
    """Waits until all hosts have enrolled. Raises LaunchError that names those that have not."""
    deadline = time.monotonic() + patience
    found: Sequence[Facts] = ()
    while len(found) < len(processes):
        found = ask(len(found))
        missing = sorted(set(processes) - {one.name for one in found})
        ended = [host for host in missing if processes[host].ended]
        if ended or (missing and time.monotonic() > deadline):
            how = "has ended before it began" if ended else f"has not come within {patience:g} s"
            raise LaunchError(
                f"the agent on {', '.join(ended or missing)} {how}: what it said stands above. If it cannot reach the "
                "coordinator, open the firewall for it, or choose another network with --network-interface"
            )
    return found
