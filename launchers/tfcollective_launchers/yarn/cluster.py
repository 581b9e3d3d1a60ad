"""Finds out whether a cluster can ever give what a job asks for: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfcollective_launchers.yarn.application import Amount, Request


@dataclass(frozen=True)
class NodeView:
    """A node that runs: its labels, what it has in all, and what is in use."""

    name: str
    labels: frozenset[str]
    total: Amount
    used: Amount

    @property
    def free(self) -> Amount:
        """The amount that is free."""
        memory, vcores = self.total.memory - self.used.memory, self.total.vcores - self.used.vcores
        return Amount(memory, vcores, self.total.gpus - self.used.gpus)


def impossible(wanted: Sequence[Request], nodes: Sequence[NodeView]) -> tuple[str, ...]:
    """Returns what no node of this cluster can give, a sentence each; nothing if all may come, if perhaps not now."""
    if not nodes:
        return ("the cluster has no node that runs",)
    return tuple(dict.fromkeys(_problems(wanted, nodes)))


def _problems(wanted: Sequence[Request], nodes: Sequence[NodeView]) -> Iterator[str]:
    labels = sorted({label for node in nodes for label in node.labels if label})
    for request in wanted:
        suited = _suited(request, nodes)
        if not suited:
            known = f"the labels are {', '.join(labels)}" if labels else "no node has a label"
            what = f"no node has the label {request.label!r}" if request.label else "every node has a label"
            yield f"{request.role}: {what}; {known}"
        elif not any(node.total.holds(request.amount) for node in suited):
            largest = max(suited, key=lambda node: (node.total.gpus, node.total.memory))
            yield (
                f"{request.role}: {request.amount} for one container; the largest node that it may use has "
                f"{largest.total} ({largest.name})"
            )


def shortage(missing: Sequence[Request], nodes: Sequence[NodeView]) -> str:
    """Describes what is free on the nodes that the missing containers may use."""
    free = {node.name: node.free for request in missing for node in _suited(request, nodes)}
    listed = "; ".join(f"{name}: {amount}" for name, amount in free.items()) or "nothing is known"
    return f"free now: {listed}"


def _suited(request: Request, nodes: Sequence[NodeView]) -> list[NodeView]:
    """A node with a label is for those who ask for it."""
    return [node for node in nodes if (request.label in node.labels if request.label else not any(node.labels))]
