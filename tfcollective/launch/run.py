"""Runs a job on the nodes of a provider: the way of every job, from its open coordinator to its outcome."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from tfcollective.agent.protocol import NodeFacts, NodeSettings, WorkerPlan
from tfcollective.clock import every
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.service import JobView
from tfcollective.launch.gather import gather, refuse
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.nodes import Agents, Node
from tfcollective.launch.plan.planner import Plan
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.provider import NodeProvider
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.signals import Gate, forward_signals
from tfcollective.settings import variable

__all__ = ["Assignment", "NodesRun", "by_name", "client_of", "end_processes_of", "run_job_on", "run_on_nodes"]

_LOOK_S = 0.5
_START_S = 60.0


@dataclass(frozen=True)
class Assignment:
    """The processes of a job, and which node runs which of them. A node without any is not needed."""

    plan: Plan
    parts: tuple[tuple[NodeFacts, tuple[WorkerPlan, ...]], ...]


@dataclass(frozen=True)
class NodesRun:
    """How a job on nodes ended, and its nodes."""

    outcome: JobOutcome
    nodes: tuple[Node, ...]


def by_name(plan: Plan) -> Callable[[Sequence[NodeFacts]], Assignment]:
    """Every node runs what the plan says of the host with its name."""
    return lambda found: Assignment(plan, tuple((facts, plan.on(facts.name)) for facts in found))


def client_of(job: Job, nodes: int) -> CoordinatorClient:
    """For the launcher's own waits: one for each node, and its orders."""
    return CoordinatorClient.to(job.coordinator, job.key, job.job_id, connections=2 * nodes + 1)


def run_job_on(
    provide: Callable[[Job], NodeProvider],
    spec: JobSpec,
    plan: Plan,
    *,
    bind_host: str,
    bind_port: int = 0,
    observer: Callable[[JobView], None] | None = None,
    names: Sequence[str] | None = None,
    assign: Callable[[Sequence[NodeFacts]], Assignment] | None = None,
    timeout: float | None = None,
    stop_signals: Sequence[int] = (),
) -> JobOutcome:
    """Runs a job whose coordinator is in this process, to its end.

    Args:
        provide: the provider of its nodes, for the open job.
        spec: what to run.
        plan: its processes.
        bind_host: the address on which agents and ranks reach the coordinator.
        bind_port: the port; 0: any free one.
        observer: see :class:`Launcher`.
        names: the nodes to ask for; None: the hosts of the plan.
        assign: which node runs what, once they are there; None: what the plan says of the host with its name.
        timeout: how long (s) the nodes may take to come; None: as long as the ranks' start may take, and
            a minute at least: it takes a while to start Python.
        stop_signals: see :meth:`Launcher.run`.
    """
    names = plan.hosts if names is None else names
    timeout = max(_START_S, spec.start_timeout) if timeout is None else timeout
    with (
        Job(spec, plan, bind_host=bind_host, bind_port=bind_port, observer=observer) as job,
        client_of(job, len(names)) as client,
        provide(job) as provider,
    ):
        requests = [
            NodeSettings(
                job.coordinator,
                job.key.hex(),
                name,
                spec.network_interfaces,
                timeout=timeout,
                ports=len(plan.on(name)) if spec.emit_tf_config else 0,
            )
            for name in names
        ]
        return run_on_nodes(job, client, provider, requests, assign or by_name(plan), stop_signals=stop_signals).outcome


def run_on_nodes(
    job: Job,
    client: CoordinatorClient,
    provider: NodeProvider,
    requests: Sequence[NodeSettings],
    assign: Callable[[Sequence[NodeFacts]], Assignment],
    *,
    python: str = sys.executable,
    stop_signals: Sequence[int] = (),
    earlier: Sequence[int] = (),
) -> NodesRun:
    """Asks for the nodes, waits for them, gives each its part, waits for all of them, and says how the job ended.

    ``python`` is the launcher's interpreter, for which each node takes its own; ``earlier`` are signals that came
    before. Raises LaunchError and RendezvousError when the nodes do not come.
    """
    agents: Agents | None = None

    def stop_agents(number: int) -> None:
        assert agents is not None
        agents.stop(number)

    stop = Gate(stop_agents)  # opened when there are some
    for number in earlier:
        stop(number)
    with forward_signals(stop_signals, stop) as received:
        provider.request(requests)
        found = gather(
            client,
            provider,
            [one.name for one in requests],
            timeout=requests[0].timeout,
            host_timeout=job.spec.host_timeout,
            stopped=lambda: bool(received or earlier),
        )
        if received or earlier:
            for facts in found:
                _dismiss(facts, client, provider, "the job was stopped before it began")
            return NodesRun(JobOutcome((), initialised=True, stopped_by=[*earlier, *received][0]), ())
        assignment = assign(found)
        job.replace_plan(assignment.plan)
        parts = [(Node(facts, client, provider), workers) for facts, workers in assignment.parts if workers]
        nodes = tuple(node for node, _ in parts)
        side = [part for part in parts if all(one.is_auxiliary_task for one in part[1])]
        agents = Agents([node for node, _ in parts if node not in dict(side)], [node for node, _ in side])
        for facts in found:
            if facts.number not in {node.facts.number for node in nodes}:
                _dismiss(facts, client, provider, "there are fewer ranks than agents: this one is not needed")
        for node, workers in parts:
            node.begin(job, workers, python)
        with every(_LOOK_S, partial(_look, provider, nodes), "tfc-events"):
            stop.open()
            failure = agents.wait(lambda: job.failed)
    if failure is not None:
        end_processes_of(job.job_id)
    lost = any(node.lost for node in nodes if node not in dict(side))
    side_failures = {str(one.task): why for place, why in agents.side_failures.items() for one in side[place][1]}
    outcome = job.outcome([*earlier, *received], failure, host_lost=lost, side_failures=side_failures)
    return NodesRun(outcome, nodes)


def _dismiss(facts: NodeFacts, client: CoordinatorClient, provider: NodeProvider, why: str) -> None:
    """Tells an agent that it may go; one that the launcher holds a pipe to goes when that is closed."""
    if provider.orders(facts.name) is None:
        refuse(facts, client, provider, why)


def _look(provider: NodeProvider, nodes: Sequence[Node]) -> None:
    """Gives the nodes what the provider knows of them."""
    for event in provider.events():
        for node in nodes:
            if event.name in ("", node.facts.name):
                node.went(event)
    for node in nodes:
        node.look()


_WAIT_S = 2.0
_ROUNDS = 3  # a process may start another while we look


def end_processes_of(job_id: str) -> int:
    """Kills every process of this user that has the job id in its environment: what a dead agent has left. Returns how
    many there were."""
    total = 0
    for _ in range(_ROUNDS):
        found = [process for process in psutil.process_iter() if _belongs(process, job_id)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, _WAIT_S)
        total += len(found)
        if not found:
            break
    return total


def _belongs(process: psutil.Process, job_id: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get(variable("job_id")) == job_id and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False  # another user's, or gone
