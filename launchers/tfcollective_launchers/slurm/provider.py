"""The nodes of an allocation: an srun for each, whose only task is the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tfcollective.launcher import (
    AGENT,
    SIGNAL_BASE,
    SYSTEM_CLOCK,
    TIMING,
    Clock,
    CommandProvider,
    Host,
    HostDiscovery,
    LaunchError,
    NodeFacts,
    NodeKind,
    NodeSettings,
    Went,
    get_logger,
)
from tfcollective_launchers.slurm.control import JobState, NodeState, SlurmError, job_state, node_states
from tfcollective_launchers.slurm.options import SlurmOptions

_LOG = get_logger(__name__)
_FRESH_S = 2.0
_TRIES = 5  # SLURM's MessageTimeout (10 s) ends each of them


def srun_command(node: str, options: SlurmOptions, *, overlap: bool) -> tuple[str, ...]:
    """Returns the command that runs an agent on ``node``, as its own step with all resources that the job has there.
    Nothing in it is secret: the key comes over stdin.

    ``overlap``: whether this srun knows ``--overlap``; before SLURM 20.11 steps shared a node by themselves.
    """
    return (
        *("srun", "--job-name=tfcollective-agent", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *(("--overlap",) if overlap else ()),
        # sbatch --export=NONE would leave the agents without PATH and without what `module load` has set.
        *("--export=ALL", "--mpi=none", "--kill-on-bad-exit=0"),
        *options.srun_args,
        options.python,
        *AGENT,
    )


class _Slurm:
    """Asks SLURM about a job and these nodes of it. If a thousand nodes fail at once it asks once for all of them, and
    a query that gets no answer delays only one caller."""

    def __init__(self, job_id: str, names: Collection[str], clock: Clock) -> None:
        self._job_id = job_id
        self._names = tuple(names)
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: tuple[JobState, Mapping[str, NodeState]] | None = None
        self._until = float("-inf")

    def now(self) -> tuple[JobState, Mapping[str, NodeState]] | None:
        """The job and its nodes by name, as they were a moment ago; None: there is no answer."""
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._answer = self._ask()
                self._until = self._clock.monotonic() + _FRESH_S
            return self._answer

    def _ask(self) -> tuple[JobState, Mapping[str, NodeState]] | None:
        try:
            return job_state(self._job_id, TIMING.slurm_says), node_states(self._names, TIMING.slurm_says)
        except SlurmError:
            return None


class SlurmProvider(CommandProvider):
    """An agent on each node of the allocation ``job_id``, started by these commands.

    An srun whose step SLURM does not launch in time, because the node is busy with its prolog, is started again a few
    times.

    Args:
        job_id: the job's number.
        commands: by node.
        environ: of the commands.
        elastic: whether nodes may be asked for again while the job runs.
        enrolled: the names of the nodes whose agents have enrolled.
        clock: for the pauses.
    """

    units = "nodes"
    advice = (
        ". If the step cannot be created, see `squeue --steps` and the end of slurmd's log; if the agents cannot reach "
        "the coordinator, choose another network with --network-interface"
    )

    def __init__(
        self,
        job_id: str,
        commands: Mapping[str, Sequence[str]],
        environ: Mapping[str, str],
        *,
        elastic: bool,
        enrolled: Callable[[], Collection[str]] = tuple,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(commands, kind=NodeKind.LENT, environ=environ, find=self._find if elastic else None)
        self._job_id = job_id
        self._slurm = _Slurm(job_id, commands, clock)
        self._enrolled = enrolled
        self._clock = clock
        self._settings: dict[str, NodeSettings] = {}
        self._tries: dict[str, int] = {}
        self._due: dict[str, float] = {}  # when to start an srun again

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`NodeProvider`."""
        self._settings.update((one.name, one) for one in nodes)
        super().request(nodes)

    def events(self) -> Sequence[Went]:
        """See :class:`NodeProvider`."""
        for name in [name for name, at in self._due.items() if self._clock.monotonic() >= at]:
            del self._due[name]
            super().request([self._settings[name]])
        gone = super().events()
        unlaunched = {event.name for event in gone if self._may_try_again(event.name)}
        if unlaunched:
            unlaunched -= set(self._enrolled())
        return [event for event in gone if not (event.name in unlaunched and self._tries_again(event.name))]

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """See :class:`NodeProvider`."""
        how = super().explain(node, silent)
        what = "" if how is not None else self._what_slurm_says(node.name)
        if not what:
            return how
        return f"{f'has not answered for {silent:g} s' if silent else 'was ended by a signal'}; SLURM says: {what}"

    def describe_missing(self, names: Sequence[str]) -> str:
        """See :class:`NodeProvider`."""
        try:
            found = node_states(names)
        except SlurmError as error:
            return f"{', '.join(names)} ({error})"
        return ", ".join(str(found.get(name, name)) for name in names)

    def _find(self, name: str) -> tuple[Sequence[str], bool]:
        raise LaunchError(f"{name} is no node of job {self._job_id}")

    def _may_try_again(self, name: str) -> bool:
        return (self._processes[name].exit_code or 0) > SIGNAL_BASE and self._tries.get(name, 0) < _TRIES

    def _tries_again(self, name: str) -> bool:
        """True if the srun of this node, which has ended without an agent, is started again: nothing is wrong with the
        node."""
        if self._what_slurm_says(name):
            return False
        code, count = self._processes[name].exit_code, self._tries.get(name, 0) + 1
        self._tries[name] = count
        self._due[name] = self._clock.monotonic() + count
        _LOG.warning(
            "srun has not launched the agent on %s (exit code %d): trying again (%d of %d)", name, code, count, _TRIES
        )
        return True

    def _how(self, name: str) -> str:
        what = self._what_slurm_says(name)
        return super()._how(name) + (f"; SLURM says: {what}" if what else "")

    def _what_slurm_says(self, name: str) -> str:
        """Describes what is wrong with a node or its job; empty: nothing is, or SLURM does not answer."""
        found = self._slurm.now()
        if found is None:
            return ""
        job, node, said = found[0], found[1].get(name), []
        if job.state != "RUNNING":
            said.append(f"job {self._job_id} is {job.state}" + (f" ({job.reason})" if job.reason else ""))
        if node is not None and any(word in node.state for word in ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "*")):
            said.append(str(node))
        elif name not in job.nodes:
            said.append(f"{name} is no longer in job {self._job_id}")
        return "; ".join(said)


class AllocationHosts(HostDiscovery):
    """The nodes that the allocation has while the job runs: those that have not failed, and that no operator drains.

    Args:
        job_id: the job's number.
        hosts: the nodes that the job has begun with.
    """

    def __init__(self, job_id: str, hosts: Sequence[Host]) -> None:
        super().__init__(("scontrol", "show", "job", job_id), limits=replace(TIMING, discovery=TIMING.slurm_looks))
        self._job_id = job_id
        self._all = tuple(hosts)
        self.hosts = self._all

    def ask(self) -> tuple[Host, ...]:
        """See :class:`HostDiscovery`."""
        job = job_state(self._job_id)
        if job.state != "RUNNING":
            return self.hosts  # it is about to end, or is suspended
        there = set(job.nodes)
        drained = {name for name, node in node_states([host.name for host in self._all]).items() if node.drains}
        self.hosts = tuple(host for host in self._all if host.name in there - drained)
        return self.hosts
