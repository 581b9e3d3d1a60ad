"""Runs a job on hosts that ssh reaches; hosts that are this machine need no ssh."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfcollective.errors import ConfigError
from tfcollective.launch.launcher import JobOutcome, Launcher
from tfcollective.launch.plan.hosts import share_out
from tfcollective.launch.plan.planner import Plan, plan_hosts, with_tf_config
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.provider import NodeFacts
from tfcollective.launch.providers.commands import AGENT, CommandProvider, own_agent
from tfcollective.launch.run import Assignment, by_name, run_job_on
from tfcollective.machine.network import choose_address, interface_addresses, is_this_machine, own_address
from tfcollective.settings import environ_snapshot
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint
from tfcollective_launchers.ssh.command import SshOptions, accepting_new_keys, ssh_command
from tfcollective_launchers.ssh.preflight import Visitor, ask_all

__all__ = ["SshLauncher", "meeting_address"]


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
        here = [host for host in plan.hosts if is_this_machine(host)]
        remote = accepting_new_keys(options, [host for host in plan.hosts if host not in here])
        commands = {host: own_agent() for host in here}
        commands.update({host: ssh_command(host, one, [one.python, *AGENT]) for host, one in remote.items()})
        visitors = ask_all(remote, str(spec.cwd))
        return run_job_on(
            lambda job: CommandProvider(commands, here),
            spec,
            plan,
            bind_host=meeting_address(visitors, interface_addresses(), spec.network_interfaces),
            observer=self.observer,
            assign=_with_ports(plan) if spec.emit_tf_config else None,
            stop_signals=stop_signals,
        )


def meeting_address(visitors: Sequence[Visitor], interfaces: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> str:
    """Where the coordinator listens: on the interface that is ``wanted``, else where the first host sees us.

    Raises ConfigError when that is not one of our addresses: something on the way translates addresses.
    """
    if wanted:
        return choose_address(interfaces, wanted)
    if not visitors:
        return own_address(())
    seen = visitors[0].our_address
    if not any(seen in addresses for addresses in interfaces.values()):
        raise ConfigError(
            f"{visitors[0].host} sees this machine as {seen or 'no address'}, which no interface here has: "
            "say with --network-interface which one the hosts can reach"
        )
    return seen


def _with_ports(plan: Plan) -> Callable[[Sequence[NodeFacts]], Assignment]:
    """Each process may listen on its host's address, at one of the ports that the host has named."""

    def assign(found: Sequence[NodeFacts]) -> Assignment:
        addresses = {one.name: one.address for one in found}
        free = {one.name: iter(one.ports) for one in found}
        endpoints: dict[TaskKey, Endpoint] = {
            one.task: Endpoint(addresses[one.host], next(free[one.host])) for one in plan.processes
        }
        return by_name(with_tf_config(plan, endpoints))(found)

    return assign
