"""Runs a job on the nodes of a provider: the way of every job, from its open coordinator to its outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tfcollective._base.clock import Deadline, every
from tfcollective._base.errors import ConfigError
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._control.store_keys import end_key
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings, WorkerPlan
from tfcollective._launch.elastic.discovery import HostDiscovery
from tfcollective._launch.elastic.follow import ElasticSupervision
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.nodes.gather import gather, refuse, turn_away
from tfcollective._launch.nodes.live import Agents, Node
from tfcollective._launch.nodes.provider import Arrival, NodeKind, NodeProvider, Refill, Went
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.planner import Plan, with_tf_config
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.running.job import AgentFailure, Job
from tfcollective._launch.system.leftovers import end_processes_of
from tfcollective._launch.system.signals import DeferredCall, forward_signals

_LOOK_S = 0.5
_START_S = 60.0  # of Python, at least
_DISMISSAL_S = 10.0  # an agent may have died in the meantime


@dataclass(frozen=True)
class Assignment:
    """The processes of a job, and which node runs which of them. A node without any is not needed at the start.

    ``hosts`` say how many ranks each may have in an elastic job, where the spec does not.
    """

    plan: Plan
    parts: tuple[tuple[NodeFacts, tuple[WorkerPlan, ...]], ...]
    hosts: tuple[Host, ...] = ()


Assign = Callable[[Sequence[NodeFacts]], Assignment]


@dataclass(frozen=True)
class Enrolment:
    """The way in which the nodes of a job come, if that does not follow from its plan.

    Attributes:
        names: the nodes to ask for; None: the hosts of the plan.
        assign: which node runs what, once they are there; None: what the plan says of the host with its name.
        timeout: how long (s) they may take; None: as long as the ranks' start may take, and a minute at least, because
            it takes a while to start Python.
        port: where they find the coordinator; 0: any free one.
    """

    names: Sequence[str] | None = None
    assign: Assign | None = None
    timeout: float | None = None
    port: int = 0


@dataclass(frozen=True)
class NodesRun:
    """The outcome of a job on nodes, and its nodes."""

    outcome: JobOutcome
    nodes: tuple[Node, ...]


def by_name(plan: Plan) -> Assign:
    """Returns an assignment in which every node runs the part of the plan for the host of its name."""
    return lambda found: Assignment(plan, tuple((facts, plan.on(facts.name)) for facts in found))


def by_name_with_ports(plan: Plan) -> Assign:
    """Assigns the same, with a TF_CONFIG in which each process listens at its node's address, on a port that its node
    holds."""

    def assign(found: Sequence[NodeFacts]) -> Assignment:
        addresses = {one.name: one.address for one in found}
        held = {one.name: iter(one.ports) for one in found}
        endpoints = {one.task: Endpoint(addresses[one.host], next(held[one.host])) for one in plan.processes}
        return by_name(with_tf_config(plan, endpoints))(found)

    return assign


def client_of(job: Job, nodes: int) -> CoordinatorClient:
    """Returns a client for the launcher's own waits, one for each node, and its orders."""
    return CoordinatorClient.to(job.coordinator, job.key, job.job_id, connections=2 * nodes + 1)


def run_job_on(
    provide: Callable[[Job], NodeProvider],
    spec: JobSpec,
    plan: Plan,
    *,
    bind_host: str,
    job_id: str | None = None,
    enrolment: Enrolment = Enrolment(),
    observers: Sequence[Callable[[JobSnapshot], None]] = (),
    stop_signals: Sequence[int] = (),
    discovery: HostDiscovery | None = None,
) -> JobOutcome:
    """Runs a job whose coordinator is in this process, to its end.

    Args:
        provide: the provider of its nodes, for the open job.
        spec: what to run.
        plan: its processes.
        bind_host: the address on which agents and ranks reach the coordinator.
        job_id: its name; None: a new one.
        enrolment: how its nodes come, where that does not follow from the plan.
        observers: see :class:`Launcher`.
        stop_signals: see :meth:`Launcher.run`.
        discovery: says which hosts an elastic job has while it runs; None: those of the spec.
    """
    names = plan.hosts if enrolment.names is None else enrolment.names
    timeout = max(_START_S, spec.start_timeout) if enrolment.timeout is None else enrolment.timeout
    with (
        Job(spec, plan, bind_host=bind_host, bind_port=enrolment.port, job_id=job_id, observers=observers) as job,
        client_of(job, len(names)) as client,
        provide(job) as provider,
    ):
        requests = [job.node_settings(name, timeout) for name in names]
        assign = enrolment.assign or (by_name_with_ports(plan) if spec.emit_tf_config else by_name(plan))
        return run_on_nodes(
            job, client, provider, requests, assign, stop_signals=stop_signals, discovery=discovery
        ).outcome


def run_on_nodes(
    job: Job,
    client: CoordinatorClient,
    provider: NodeProvider,
    requests: Sequence[NodeSettings],
    assign: Assign,
    *,
    python: str = sys.executable,
    stop_signals: Sequence[int] = (),
    earlier: Sequence[int] = (),
    discovery: HostDiscovery | None = None,
) -> NodesRun:
    """Asks for the nodes, waits for them, gives each its part, waits for all of them, and says how the job ended.

    ``python`` is the launcher's interpreter, for which each node takes its own; ``earlier`` are signals that came
    before; ``discovery`` says which hosts an elastic job has. Raises LaunchError and RendezvousError when the nodes do
    not come.
    """
    stop = DeferredCall()
    for number in earlier:
        stop(number)
    with forward_signals(stop_signals, stop, job.stacks.show_all) as received:

        def signals() -> list[int]:
            return [*earlier, *received]

        provider.request(requests)
        found = gather(
            client,
            provider,
            [one.name for one in requests],
            timeout=requests[0].timeout,
            host_timeout=job.spec.host_timeout,
            stopped=lambda: bool(signals()),
            enough=lambda here: _can_begin(job, provider, assign, here),
        )
        if signals():
            _dismiss_all(found, client, provider, "the job was stopped before it began")
            return NodesRun(JobOutcome((), initialised=True, stopped_by=signals()[0]), ())
        assignment = _assigned(job, client, provider, assign, found)
        parts = {Node(facts, client, provider): workers for facts, workers in assignment.parts if workers}
        hosts = assignment.hosts or job.spec.hosts
        agents, elastic = _agents_of(job, client, provider, parts, hosts, requests[0], python, discovery)
        unused = [facts for facts in found if facts.number not in {node.facts.number for node in parts}]
        if elastic is None or provider.arrival is not Arrival.OPEN:
            _dismiss(unused, client, provider, "there are fewer ranks than agents: this one is not needed")
            unused = []
        for node, workers in parts.items():
            node.begin(job, workers, python, _slots_of(hosts, node.facts.name, len(workers)))
        if elastic is None:
            failure = _await_end(job, client, provider, agents, found, stop)
        else:
            failure = _await_elastic_end(job, provider, agents, elastic, found, unused, stop)
    if failure is not None:
        end_processes_of(job.job_id)
    side_failures = {str(one.task): why for node, why in agents.side_failures.items() for one in parts[node]}
    outcome = job.outcome(signals(), failure, host_lost=agents.host_lost, side_failures=side_failures)
    return NodesRun(outcome, agents.all)


def _assigned(
    job: Job, client: CoordinatorClient, provider: NodeProvider, assign: Assign, found: Sequence[NodeFacts]
) -> Assignment:
    """Returns which of the nodes that have come runs what, and tells the job. Raises ConfigError if they cannot run it,
    after dismissing them."""
    try:
        assignment = assign(found)
    except ConfigError as error:
        _dismiss_all(found, client, provider, str(error))
        raise
    job.settle(assignment.plan, _meeting_place(assignment))
    missing = _without_node(assignment)
    if missing:
        job.note_lost(missing)
    return assignment


def _meeting_place(assignment: Assignment) -> Endpoint | None:
    """Returns the address and the port that rank 0's node holds for a server of the script, if it has come."""
    for facts, workers in assignment.parts:
        if facts.ports and any(one.rank == 0 for one in workers):
            return Endpoint(facts.address, facts.ports[0])
    return None


def _agents_of(
    job: Job,
    client: CoordinatorClient,
    provider: NodeProvider,
    parts: Mapping[Node, Sequence[WorkerPlan]],
    hosts: Sequence[Host],
    settings: NodeSettings,
    python: str,
    discovery: HostDiscovery | None,
) -> tuple[Agents, ElasticSupervision | None]:
    """Returns the agents of these nodes, and their supervision if the job is elastic."""
    side = [node for node, workers in parts.items() if all(one.is_auxiliary_task for one in workers)]
    elastic: ElasticSupervision | None = None
    agents = Agents(
        [node for node in parts if node not in side],
        side,
        lambda node, failure: elastic is not None and elastic.outlasts(node, failure.message),
        lambda node, failure: None if elastic is None else elastic.reconciler.gone(node),
    )
    if job.spec.bounds is not None:
        hosts = hosts or (Host("", job.spec.num_proc),)  # this machine
        elastic = ElasticSupervision.of(job, client, provider, agents, parts, hosts, settings, python, discovery)
    return agents, elastic


def _await_end(
    job: Job,
    client: CoordinatorClient,
    provider: NodeProvider,
    agents: Agents,
    found: Sequence[NodeFacts],
    stop: DeferredCall,
) -> AgentFailure | None:
    """Waits for the agents of a job of fixed size; see :meth:`Agents.wait`."""
    if provider.arrival is Arrival.OPEN:
        turn_away(client, provider, found, again=job.spec.rules.restarts > 0)
    with every(_LOOK_S, partial(_look, provider, agents), "tfc-events"):
        stop.open(agents.heed)
        return agents.wait(lambda: job.failed)


def _await_elastic_end(
    job: Job,
    provider: NodeProvider,
    agents: Agents,
    elastic: ElasticSupervision,
    found: Sequence[NodeFacts],
    unused: Sequence[NodeFacts],
    stop: DeferredCall,
) -> AgentFailure | None:
    """Waits for the agents of an elastic job, with those that come later; see :meth:`Agents.wait`."""
    with elastic, every(_LOOK_S, partial(_look, provider, agents, elastic.scaler.went), "tfc-events"):
        stop.open(agents.heed)
        if provider.arrival is Arrival.OPEN:
            elastic.take_in(unused, found)
        return agents.wait(lambda: job.failed)


def _without_node(assignment: Assignment) -> list[TaskKey]:
    """The tasks whose nodes have not come."""
    placed = {one.task for _, workers in assignment.parts for one in workers}
    return [one.task for one in assignment.plan.processes if one.task not in placed]


def _can_begin(job: Job, provider: NodeProvider, assign: Assign, here: Sequence[NodeFacts]) -> bool:
    """True if an elastic job may begin although only these nodes have come: others may come later."""
    bounds, refills = job.spec.bounds, provider.refill is not Refill.NONE
    if bounds is None or not (provider.arrival is Arrival.OPEN or (provider.kind is NodeKind.LENT and refills)):
        return False
    try:
        missing = _without_node(assign(here))
    except ConfigError:  # they have too few slots
        return False
    trainers = job.spec.num_proc - len(missing)
    return trainers >= bounds.smallest and not any(task in job.spec.auxiliary_tasks for task in missing)


def _slots_of(hosts: Sequence[Host], name: str, at_least: int) -> int:
    """Returns how many ranks this host may have."""
    return max([at_least, *(one.slots for one in hosts if one.name == name)])


def _dismiss(found: Sequence[NodeFacts], client: CoordinatorClient, provider: NodeProvider, why: str) -> None:
    """Dismisses agents; those that the launcher has a pipe to end when that is closed."""
    for facts in found:
        if provider.orders(facts.name) is None:
            refuse(facts, client, provider, why)


def _dismiss_all(found: Sequence[NodeFacts], client: CoordinatorClient, provider: NodeProvider, why: str) -> None:
    """The same before the launcher ends: an agent that has not heard of it would wait for orders."""
    _dismiss(found, client, provider, why)
    deadline = Deadline.after(_DISMISSAL_S)
    for facts in found:
        if provider.orders(facts.name) is None:
            client.wait(end_key(facts.number), timeout=deadline.remaining())


def _look(provider: NodeProvider, agents: Agents, went: Callable[[Went], None] = lambda event: None) -> None:
    """Passes the provider's events on to the nodes and to the requests for further nodes."""
    for event in provider.events():
        went(event)
        for node in agents.all:
            if event.concerns(node.facts):
                node.went(event)
    for node in agents.all:
        node.look()
