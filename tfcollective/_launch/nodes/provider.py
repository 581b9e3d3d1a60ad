"""The source of a job's nodes: :class:`NodeProvider`, the one interface that a platform implements.

Those that need no platform are in :mod:`tfcollective._launch.platforms`. See docs/design/launching.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings


@dataclass(frozen=True)
class Went:
    """A node that has gone, or that will never come.

    Attributes:
        name: as in its settings; empty: every node, where the platform gives all or none.
        how: how it ended, as a predicate for :meth:`NodeProvider.subject`: ``was ended (exit code 137)``.
        detail: helps to understand why it never came: the end of its log.
        instance: which one of the nodes with its name; see :class:`NodeFacts`.
    """

    name: str
    how: str
    detail: str = ""
    instance: str = ""

    def concerns(self, node: NodeFacts) -> bool:
        """True if this node is the one that has gone."""
        return self.name in ("", node.name) and self.instance in ("", node.instance)


class Arrival(Enum):
    """The way in which the agents of a job come."""

    NAMED = "named"  # each enrols under a name that was asked for
    COUNTED = "counted"  # as many as were asked for come by themselves; each may take any part
    OPEN = "open"  # as COUNTED, and others may come: an elastic job takes them in, others turn them away


class NodeKind(Enum):
    """The kind of a platform's nodes: what the unexpected end of an agent says about its node."""

    HERE = "here"  # this machine: agents are children of this process, for a plan that leaves nothing to them
    KEPT = "kept"  # they stay: an agent may end without them
    #: The platform takes nodes away: one whose agent ends, or gets a signal that the launcher has not asked for, is a
    #: lost host, which trying again may replace.
    LENT = "lent"


class Refill(Enum):
    """The effect of further calls of :meth:`NodeProvider.request` while an elastic job runs."""

    NONE = "none"  # there are none
    SAME = "same"  # start an agent on another host, or again on the host of one that has gone
    RENEWED = "renewed"  # the platform replaces a preempted node by another of the same name


class NodeProvider(ABC):
    """The nodes of one job on one platform. A context manager: afterwards it holds nothing of the platform's.

    A node has come when its agent has enrolled with the coordinator, which the launcher sees by itself; what only the
    platform knows are :meth:`events` and :meth:`explain`. All methods may be called from several threads.

    Attributes:
        units: what people call its nodes.
        arrival: how its agents come. Where it is :attr:`Arrival.OPEN`, one that cannot take part is waited past.
        refill: what may be asked for while an elastic job runs; the request may wait then.
        kind: what they are.
        advice: what a person may do about nodes that do not come.
    """

    units: str = "agents"
    arrival: Arrival = Arrival.NAMED
    refill: Refill = Refill.NONE
    kind: NodeKind = NodeKind.KEPT
    advice: str = (
        ". If they cannot reach the coordinator, open the firewall for them, or choose another network with "
        "--network-interface"
    )

    def __enter__(self) -> NodeProvider:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @abstractmethod
    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """Has an agent with each of these settings started, and returns before they have come.

        Raises LaunchError or ConfigError when that cannot be done.
        """

    @abstractmethod
    def release(self, name: str) -> None:
        """Takes this node away: it does not answer, or is not needed. Nothing if it has gone."""

    @abstractmethod
    def close(self) -> None:
        """Ends what :meth:`request` has started and still runs; called after the end of the job."""

    def events(self) -> Sequence[Went]:
        """Returns what has happened to nodes since the last call, at once."""
        return ()

    def subject(self, node: NodeFacts) -> str:
        """Returns the name of a node for a sentence; for a node that has not come, only its name is known."""
        return f"the agent on {node.name}" if not node.pid else f"{node.name}: the agent (pid {node.pid})"

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """Returns how a node ended that has come and has not answered for ``silent`` seconds, as :attr:`Went.how`;
        None: the platform does not know. May wait some seconds until the platform knows."""
        del node, silent
        return None

    def take_in(self, facts: NodeFacts) -> tuple[NodeFacts, int]:
        """Takes in an agent that came while an elastic job ran, if :attr:`arrival` is open: returns its facts, with its
        name in the job, and how many ranks it takes."""
        return facts, facts.slots or 1

    def machine(self, name: str) -> str:
        """The machine on which the newest node of this name is or was, where the platform chooses machines; else its
        name. Empty: the platform has not chosen yet."""
        return name

    def describe_missing(self, names: Sequence[str]) -> str:
        """Describes nodes that have not come in time."""
        return ", ".join(names)

    def orders(self, name: str) -> Callable[[bytes], None] | None:
        """Returns a function that sends a line of orders to this node, also from signal handlers; None: use the
        coordinator."""
        del name
        return None
