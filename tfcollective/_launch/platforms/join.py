"""The launcher that starts no agents: it prints the line with which anything else starts them, and waits for them. An
elastic job takes in what comes later, too."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.log import say
from tfcollective._base.machine.network import own_address
from tfcollective._base.options import PATH, Options, count, hosting
from tfcollective._base.private_directory import write_private
from tfcollective._base.settings import Settings, environ_snapshot, variable
from tfcollective._control.identity.keys import read_key, read_key_file
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings
from tfcollective._launch.launcher import Capabilities, JobOutcome, Launcher
from tfcollective._launch.nodes.provider import Arrival, NodeProvider
from tfcollective._launch.plan.hosts import Host, Share, share_out
from tfcollective._launch.plan.planner import Plan, plan_hosts
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.run import Assignment, Enrolment, run_job_on
from tfcollective._launch.running.job import Job

_AGENT = " (agent "  # begins what follows the host in the name of one of several agents there
_MISSING = "(no agent)"  # where ranks would be that too few agents have come for


@dataclass(frozen=True)
class AgentsOptions(Options):
    """The options of a job whose agents are started by others."""

    agents: int = hosting(count(1), "Wait for N agents that you start yourself.", "--wait-for-agents", ...)
    port: int = hosting(
        count(0, 65535, "the highest port"), "Port at which agents join.", "--port", 0, metavar="P", default="any"
    )
    key_file: str | None = hosting(PATH, "File in which agents find the job key.", "--key-file")


class JoinedLauncher(Launcher):
    """Waits for agents that ``mpirun``, ``srun``, a person or anything else starts."""

    options = AgentsOptions
    capabilities = Capabilities(
        start="whatever you use starts `tfcollective agent --join` on each node",
        logs="live, each line with its rank; `--log-dir` on the nodes",
        gpus="all of the node, or `--gpus-per-proc`",
        elastic="lost ranks are replaced on their node; agents that come later join, up to `--max-np`",
        preemption="SIGTERM to the agent or a rank; `--preemption-file`, `--preemption-command`",
        restart="with `--port` and a key of yours: the agents join again",
        secrets="a file that only you can read (`--key-file`), or `TFCOLLECTIVE_KEY` on both sides",
        evaluator="on the first agent",
    )

    def plan(self, spec: JobSpec) -> Plan:
        """Plans the job. The hosts are not known before their agents enrol."""
        options = AgentsOptions.of(spec.platform)
        if spec.discovery or spec.blacklist:
            raise UnsupportedError("discovery, blacklist: the hosts of this job are those whose agents join it")
        lasting = options.port and (options.key_file or _key_of_environment() is not None)
        if spec.max_restarts and not lasting:
            raise ConfigError(
                "max_restarts: agents that join again need the same address and key: add --port, and --key-file or "
                f"{variable('key')}"
            )
        if spec.emit_tf_config:
            raise UnsupportedError("a TF_CONFIG names ports: with -H or --hostfile, or on this machine only")
        names = [f"agent {number}" for number in range(options.agents)]
        return plan_hosts(spec, deal_to(names, [None] * options.agents, spec), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = AgentsOptions.of(spec.platform)
        key, place = given_key(options.key_file)
        share = -(-spec.num_proc // options.agents)
        elastic = partial(elastic_assignment, spec=spec, share=share)
        assign = partial(dealt_assignment, spec=spec) if spec.bounds is None else elastic
        return run_job_on(
            lambda job: JoinProvider(_place_in(job) if place is None else place, share, given=key is not None),
            spec if key is None else replace(spec, key=key),
            self.plan(spec),
            bind_host=own_address(spec.network_interfaces),
            enrolment=Enrolment([""] * options.agents, assign, spec.start_timeout, options.port),
            observers=self.observers,
            stop_signals=stop_signals,
        )


class JoinProvider(NodeProvider):
    """Agents that ``mpirun``, ``srun``, a person or anything else starts.

    Args:
        key_file: where they find the key; empty: in the environment, as the launcher.
        share: how many ranks one takes in an elastic job that has not said it.
        given: whether the key is there already; else it is put there, and removed at the end.
    """

    arrival = Arrival.OPEN
    advice = ""

    def __init__(self, key_file: str, share: int = 1, *, given: bool = False) -> None:
        self._key_file = key_file
        self._share = share
        self._given = given
        self._written = b""

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """Puts the key there, unless it is given, and says what to run on as many hosts."""
        if not self._given:
            key = nodes[0].key.encode()
            try:
                write_private(Path(self._key_file), key)
            except OSError as error:
                raise ConfigError(f"the job key cannot be put into {self._key_file}: {error}") from error
            self._written = key
        elif self._key_file:
            # A launcher that was killed has left its own, and this one cannot tell.
            say(f"the job key is the one in {self._key_file}, which was there already: remove the file for a new key")
        join = ["tfcollective", "agent", "--join", nodes[0].coordinator]
        join += ["--key-file", self._key_file] if self._key_file else []
        count = "one host" if len(nodes) == 1 else f"each of {len(nodes)} hosts"
        place = f"{self._key_file} has to be readable" if self._key_file else "the environment has the same job key"
        say(f"run this on {count}, where {place}:\n  {shlex.join(join)}")

    def take_in(self, facts: NodeFacts) -> tuple[NodeFacts, int]:
        """Takes an agent in, under a name of its own: an earlier one of its machine may still count as alive."""
        return replace(facts, name=numbered_name(facts)), facts.slots or self._share

    def machine(self, name: str) -> str:
        """See :class:`NodeProvider`."""
        return name.partition(_AGENT)[0]

    def release(self, name: str) -> None:
        """Does nothing: the agent was not started from here, and ends by itself."""

    def close(self) -> None:
        """Removes the file of the job key, unless the next job has put its own there already."""
        path = Path(self._key_file)
        with suppress(OSError):
            if self._written and path.read_bytes() == self._written:
                path.unlink()


def _place_in(job: Job) -> str:
    return str(Path(job.scratch_dir) / "join.key")


def given_key(key_file: str | None) -> tuple[bytes | None, str | None]:
    """The key of a job whose agents have it already, and where they find it: in a file that exists, or, where none is
    named, in the environment (empty). No key: the launcher makes one. Raises ConfigError for a file whose key is not
    safe to use: it may be another user's who wants to join."""
    if key_file is None:
        key = _key_of_environment()
        return key, None if key is None else ""
    return (read_key_file(key_file, "--key-file") if Path(key_file).exists() else None), key_file


def _key_of_environment() -> bytes | None:
    """The key in this process's environment, unless it is that of a job which this process is a rank of."""
    return None if variable("task") in environ_snapshot() else read_key(Settings.load())


def numbered_name(facts: NodeFacts) -> str:
    """Returns the name of an agent whose host may have others, or may be thought to have others."""
    return f"{facts.host}{_AGENT}{facts.number})"


def _named(found: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Returns the nodes in the order of the hosts' names; reports name hosts, with a number where several agents share
    one.
    """
    count = Counter(one.host for one in found)
    ordered = sorted(found, key=lambda one: one.host)
    return [replace(one, name=one.host if count[one.host] == 1 else numbered_name(one)) for one in ordered]


def dealt_assignment(found: Sequence[NodeFacts], spec: JobSpec) -> Assignment:
    """The ranks of a job of fixed size, dealt to the agents in the order of their hosts' names."""
    named = _named(found)
    shares = deal_to([one.name for one in named], [one.slots for one in named], spec)
    plan = plan_hosts(spec, shares, environ_snapshot())
    return Assignment(plan, tuple((facts, plan.on(facts.name)) for facts in named))


def elastic_assignment(found: Sequence[NodeFacts], spec: JobSpec, share: int) -> Assignment:
    """The first ranks of an elastic job, with the slots of all agents: ``share`` of one that has not said how many.

    Raises ConfigError when there are too few slots for the smallest world.
    """
    assert spec.bounds is not None
    named = _named(found)
    hosts = tuple(Host(one.name, one.slots or share) for one in named)
    missing = spec.num_proc - sum(host.slots for host in hosts)
    enough = missing <= spec.num_proc - spec.bounds.smallest
    places = [*hosts, Host(_MISSING, missing)] if missing > 0 and enough else hosts
    plan = plan_hosts(spec, share_out(places, spec.num_proc), environ_snapshot())
    return Assignment(plan, tuple((facts, plan.on(facts.name)) for facts in named), hosts)


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
