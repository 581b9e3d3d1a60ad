"""The launcher that starts no agents: it prints the line with which anything else starts them, and waits for them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfcollective.errors import ConfigError, UnsupportedError
from tfcollective.launch.launcher import JobOutcome, Launcher, platform_options
from tfcollective.launch.plan.hosts import Host, Share, share_out
from tfcollective.launch.plan.planner import Plan, plan_hosts
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.provider import NodeFacts, NodeProvider, NodeSettings
from tfcollective.launch.run import Assignment, Enrolment, run_job_on
from tfcollective.machine.network import own_address
from tfcollective.private_directory import write_private
from tfcollective.settings import environ_snapshot


@dataclass(frozen=True)
class _Options:
    """The platform's settings: how many agents to wait for, where the coordinator listens, where the key is put."""

    agents: int
    port: int = 0
    key_file: str | None = None

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise ConfigError(f"agents: expected 1 or more, got {self.agents}")


class JoinedLauncher(Launcher):
    """Waits for agents that ``mpirun``, ``srun``, a person or anything else starts."""

    can_restart = False  # the agents end with the job, and what started them is not asked

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`. Which hosts they are is not known before they are there."""
        options = platform_options(_Options, spec.platform, "agents")
        if spec.bounds is not None:
            raise UnsupportedError("min_proc: a lost rank ends a job whose agents others start: leave it out")
        if spec.emit_tf_config:
            raise UnsupportedError("a TF_CONFIG names ports: with -H or --hostfile, or on this machine only")
        names = [f"agent {number}" for number in range(options.agents)]
        return plan_hosts(spec, deal_to(names, [None] * options.agents, spec), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = platform_options(_Options, spec.platform, "agents")
        return run_job_on(
            lambda job: JoinProvider(options.key_file or str(Path(job.scratch_dir) / "join.key")),
            spec,
            self.plan(spec),
            bind_host=own_address(spec.network_interfaces),
            enrolment=Enrolment(
                [""] * options.agents, lambda found: _dealt(found, spec), spec.start_timeout, options.port
            ),
            observer=self.observer,
            stop_signals=stop_signals,
        )


class JoinProvider(NodeProvider):
    """Agents that ``mpirun``, ``srun``, a person or anything else starts; ``key_file`` is where they find the key."""

    named = False
    others_may_come = True
    advice = ""

    def __init__(self, key_file: str) -> None:
        self._key_file = key_file
        self._written = False

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """Puts the key there, and says what to run on as many hosts."""
        try:
            write_private(Path(self._key_file), nodes[0].key.encode())
        except OSError as error:
            raise ConfigError(f"the job key cannot be put into {self._key_file}: {error}") from error
        self._written = True
        join = shlex.join(["tfcollective", "agent", "--join", nodes[0].coordinator, "--key-file", self._key_file])
        count = "one host" if len(nodes) == 1 else f"each of {len(nodes)} hosts"
        sys.stderr.write(f"tfcollective: run this on {count}, where {self._key_file} has to be readable:\n  {join}\n")
        sys.stderr.flush()

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`: it was not started from here, and ends by itself."""

    def close(self) -> None:
        """See :class:`NodeProvider`."""
        if self._written:
            with suppress(OSError):
                Path(self._key_file).unlink()


def _dealt(found: Sequence[NodeFacts], spec: JobSpec) -> Assignment:
    """The ranks in the order of the hosts' names; reports name hosts, with a number where several agents share one."""
    ordered = sorted(found, key=lambda one: one.host)
    hosts = [one.host for one in ordered]
    names = [one.host if hosts.count(one.host) == 1 else f"{one.host} (agent {one.number})" for one in ordered]
    plan = plan_hosts(spec, deal_to(names, [one.slots for one in ordered], spec), environ_snapshot())
    return Assignment(plan, tuple((facts, plan.on(name)) for facts, name in zip(ordered, names, strict=True)))


def deal_to(names: Sequence[str], slots: Sequence[int | None], spec: JobSpec) -> tuple[Share, ...]:
    """The ranks in blocks, in this order of the agents; those that have not said how many they take share evenly."""
    said = sum(slot for slot in slots if slot is not None)
    silent = sum(slot is None for slot in slots)
    left = max(0, spec.num_proc - said)
    most = -(-left // silent) if silent else 0
    hosts = []
    for name, slot in zip(names, slots, strict=True):
        count = slot if slot is not None else min(most, left)
        left -= count if slot is None else 0
        if count:
            hosts.append(Host(name, count))
    return share_out(hosts, spec.num_proc)
