"""The launcher that starts no agents: it prints the line with which anything else starts them, and waits for them."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective.control.client import CoordinatorClient
from tfcollective.control.store import Entry
from tfcollective.errors import ConfigError, CoordinatorError, RendezvousError, UnsupportedError
from tfcollective.launch.launcher import JobOutcome, Launcher
from tfcollective.launch.nodes.launcher_side import (
    Facts,
    Mailbox,
    Node,
    client_of,
    enrolled,
    run_on_nodes,
    version_problem,
)
from tfcollective.launch.nodes.protocol import beat_key, refusal_line
from tfcollective.launch.plan.hosts import Host, Share, share_out
from tfcollective.launch.plan.planner import Plan, plan_hosts
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.network import own_address
from tfcollective.launch.system.secret_file import write_secret
from tfcollective.log import get_logger
from tfcollective.settings import environ_snapshot

__all__ = ["Attendance", "JoinedLauncher", "deal_to"]

_LOG = get_logger(__name__)
_POLL_S = 1.0
_TELL_S = 15.0
_LOOK_S = 3.0


@dataclass(frozen=True)
class _Options:
    """The platform's settings: how many agents to wait for, where the coordinator listens, where the key is put."""

    agents: int
    port: int = 0
    key_file: str | None = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, object]) -> _Options:
        try:
            options = cls(**platform)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(f"the launcher 'agents' takes agents, port and key_file: {error}") from error
        if options.agents < 1:
            raise ConfigError(f"the number of agents is 1 or more, not {options.agents}")
        return options


class JoinedLauncher(Launcher):
    """Waits for agents that ``mpirun``, ``srun``, a person or anything else starts."""

    can_restart = False  # the agents end with the job, and whoever started them is not asked

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`. Which hosts they are is not known before they are there."""
        options = _Options.from_platform(spec.platform)
        if spec.emit_tf_config:
            raise UnsupportedError("a TF_CONFIG names ports: with -H or --hostfile, or on this machine only")
        names = [f"agent {number}" for number in range(options.agents)]
        return plan_hosts(spec, deal_to(names, [None] * options.agents, spec), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = _Options.from_platform(spec.platform)
        bind_host = own_address(spec.network_interfaces)
        with Job(spec, self.plan(spec), bind_host=bind_host, bind_port=options.port, observer=self.observer) as job:
            key_file = options.key_file or str(Path(job.scratch_dir) / "join.key")
            with write_secret(key_file, job.key.hex()):
                _tell(job, options, key_file)
                with client_of(job, options.agents) as client:
                    refused: set[int] = set()
                    found = _gather(client, options.agents, spec.start_timeout, refused, spec.host_timeout)
                    _turn_away(client, refused | {one.number for one in found})
                    facts = sorted(found, key=lambda one: one.host)
                    nodes = _name(facts, client)
                    slots = [one.slots for one in facts]
                    plan = plan_hosts(spec, deal_to(list(nodes), slots, spec), environ_snapshot())
                    job.replace_plan(plan)
                    _dismiss(nodes, plan)
                    return run_on_nodes(job, plan, nodes, sys.executable, stop_signals)


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


def _tell(job: Job, options: _Options, key_file: str) -> None:
    join = shlex.join(["tfcollective", "agent", "--join", job.coordinator, "--key-file", key_file])
    count = "one host" if options.agents == 1 else f"each of {options.agents} hosts"
    sys.stderr.write(f"tfcollective: run this on {count}, where {key_file} has to be readable:\n  {join}\n")
    sys.stderr.flush()


class Attendance:
    """Which agents are still there, by their signs of life: pure; times are those of one monotonic clock in seconds.

    ``limit`` is how long one may be silent.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._moved: dict[int, tuple[int, float]] = {}
        self._ended: set[int] = set()

    def note(self, number: int, beat: Entry | None, now: float) -> None:
        """The newest sign of life of an agent; None when it has given none since it came."""
        version = 0 if beat is None else beat.version
        known = self._moved.get(number)
        if known is None or version > known[0]:
            self._moved[number] = (version, now)
        if beat is not None and isinstance(beat.value, dict) and beat.value.get("ended"):
            self._ended.add(number)

    def here(self, number: int, now: float) -> bool:
        """Whether it lives, as far as one can know."""
        return number not in self._ended and now - self._moved[number][1] < self._limit

    def knows(self, number: int) -> bool:
        """Whether anything has been noted of it."""
        return number in self._moved


def _gather(
    client: CoordinatorClient, count: int, timeout: float, refused: set[int], host_timeout: float
) -> tuple[Facts, ...]:
    """The agents, once there are enough that can take part and still live; adds to ``refused`` whom it has told to go.
    Raises RendezvousError."""
    deadline = time.monotonic() + timeout
    tell_at = time.monotonic() + _TELL_S
    have = 0
    attendance, looked = Attendance(host_timeout), time.monotonic()
    while True:
        found = enrolled(client, _POLL_S, have)
        have = len(found)
        _refuse_others(client, found, refused)
        agents = [one for one in found if one.number not in refused]
        look = time.monotonic() - looked >= _LOOK_S  # not whenever one more has come: there may be a thousand
        _take_note(client, agents if look else [one for one in agents if not attendance.knows(one.number)], attendance)
        now = time.monotonic()
        looked = now if look else looked
        good = tuple(one for one in agents if attendance.here(one.number, now))
        if len(good) >= count:
            return good[:count]
        gone = [one for one in agents if one not in good]
        here = ", ".join(one.host for one in good) or "none"
        left = f"; gone again: {', '.join(one.host for one in gone)}" if gone else ""
        if now > deadline:
            raise RendezvousError(f"{len(good)} of {count} agents came within {timeout:g} s: {here}{left}")
        if now > tell_at:
            sys.stderr.write(f"tfcollective: waiting for {count - len(good)} more agents; here: {here}{left}\n")
            tell_at = now + _TELL_S


def _refuse_others(client: CoordinatorClient, found: Sequence[Facts], refused: set[int]) -> None:
    for one in found:
        problem = version_problem(one)
        if problem is not None and one.number not in refused:
            refused.add(one.number)
            Mailbox(client, one.number).write(refusal_line(problem))
            sys.stderr.write(f"tfcollective: refused an agent: {problem}\n")


def _take_note(client: CoordinatorClient, agents: Sequence[Facts], attendance: Attendance) -> None:
    for one in agents:
        attendance.note(one.number, client.get(beat_key(one.number)), time.monotonic())


def _turn_away(client: CoordinatorClient, known: set[int]) -> None:
    """From now on, until ``client`` is closed, whoever is not among the known is told to go."""
    threading.Thread(target=_keep_turning_away, args=(client, set(known)), name="tfc-door", daemon=True).start()


def _keep_turning_away(client: CoordinatorClient, known: set[int]) -> None:
    have = 0
    while not client.closed:
        try:
            found = enrolled(client, _TELL_S, have)
        except CoordinatorError as error:
            _LOG.info("launcher: %s", error)
            time.sleep(_POLL_S)
            continue
        have = len(found)
        for one in found:
            if one.number not in known:
                known.add(one.number)
                Mailbox(client, one.number).write(refusal_line("the job has its agents: this one is not needed"))


def _name(facts: Sequence[Facts], client: CoordinatorClient) -> dict[str, Node]:
    """The nodes by names of their own: those of their hosts, with a number where several are on one host."""
    hosts = [one.host for one in facts]
    return {
        one.host if hosts.count(one.host) == 1 else f"{one.host} (agent {one.number})": Node(
            one, client, Mailbox(client, one.number).write, lambda: None
        )
        for one in facts
    }


def _dismiss(nodes: Mapping[str, Node], plan: Plan) -> None:
    """Agents for which there are no ranks may go."""
    for name, node in nodes.items():
        if name not in plan.hosts:
            node.refuse("there are fewer ranks than agents: this one is not needed")
