"""Follows the hosts and processes of an elastic job while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcollective._control.client.client import CoordinatorClient
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings, WorkerPlan
from tfcollective._launch.elastic.discovery import HostDiscovery
from tfcollective._launch.elastic.reconciler import Reconciler
from tfcollective._launch.nodes.live import Agents, Node
from tfcollective._launch.nodes.node_scaler import NodeScaler
from tfcollective._launch.nodes.provider import NodeProvider
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.running.job import Job


@dataclass(frozen=True)
class ElasticSupervision:
    """The reconciler of a job, and what it hears of: agents that come later, and hosts that a script finds. A context
    manager: while it is open, they act."""

    job: Job
    reconciler: Reconciler
    scaler: NodeScaler
    discovery: HostDiscovery | None

    @classmethod
    def of(
        cls,
        job: Job,
        client: CoordinatorClient,
        provider: NodeProvider,
        agents: Agents,
        parts: Mapping[Node, Sequence[WorkerPlan]],
        hosts: Sequence[Host],
        settings: NodeSettings,
        python: str,
        discovery: HostDiscovery | None,
    ) -> ElasticSupervision:
        """Returns the supervision of the job on its first nodes."""
        scaler = NodeScaler(job, client, provider, agents, settings, python)
        nodes = {
            one.task: (node, None if one.is_auxiliary_task else Slot(node.facts.name, one.local_rank))
            for node, workers in parts.items()
            for one in workers
        }
        return cls(job, Reconciler(job, nodes, hosts, scaler, lambda: agents.stopping), scaler, discovery)

    def outlasts(self, node: Node, failure: str) -> bool:
        """True if the job continues after this failure of this node."""
        return self.job.outlasts(self.reconciler.tasks_on(node), failure)

    def take_in(self, unused: Sequence[NodeFacts], known: Sequence[NodeFacts]) -> None:
        """Agents that come by themselves join the job: those that had no part at the start, and all that come now."""
        for facts in unused:
            self.scaler.take_in(facts, self.reconciler.arrived)
        self.scaler.follow(known, self.reconciler.arrived)

    def __enter__(self) -> ElasticSupervision:
        self.reconciler.__enter__()
        if self.discovery is not None:
            self.discovery.follow(self.reconciler.found)
        return self

    def __exit__(self, *unused: object) -> None:
        if self.discovery is not None:
            self.discovery.close()
        self.reconciler.__exit__(None, None, None)
        self.scaler.close()
