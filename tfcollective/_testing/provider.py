"""A provider without a platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings
from tfcollective._launch.nodes.provider import Arrival, NodeKind, NodeProvider, Refill, Went


class FakeProvider(NodeProvider):
    """Records what it is asked for, starts nothing, and returns the events that a test puts into ``happens``.

    Args:
        how: its explanation for nodes that do not answer.
        pipes: whether it takes orders itself; they are then in ``lines``.
        arrival, refill, kind, advice, units: see :class:`NodeProvider`.
    """

    def __init__(
        self,
        *,
        how: str | None = None,
        pipes: bool = False,
        arrival: Arrival = Arrival.NAMED,
        refill: Refill = Refill.NONE,
        kind: NodeKind = NodeKind.KEPT,
        advice: str = "",
        units: str = "agents",
    ) -> None:
        self.requested: list[NodeSettings] = []
        self.released: list[str] = []
        self.lines: list[bytes] = []
        self.happens: list[Went] = []
        self.closed = False
        self.arrival, self.refill, self.kind = arrival, refill, kind
        self.advice, self.units = advice, units
        self._how, self._pipes = how, pipes

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """Records the nodes."""
        self.requested += nodes

    def release(self, name: str) -> None:
        """Records the name."""
        self.released.append(name)

    def close(self) -> None:
        """Records that it was closed."""
        self.closed = True

    def events(self) -> Sequence[Went]:
        """Returns the events of ``happens``, each once."""
        happened, self.happens = self.happens, []
        return happened

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """Returns ``how``."""
        del node, silent
        return self._how

    def orders(self, name: str) -> Callable[[bytes], None] | None:
        """Returns the function that appends to ``lines``, if it has pipes."""
        del name
        return self.lines.append if self._pipes else None
