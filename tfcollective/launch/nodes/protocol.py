"""What a node and its launcher say to each other: the settings, the pulse and the orders."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfcollective.codec import encode_line

__all__ = ["Facts", "FirstOrder", "NodeSettings", "beat_key", "orders_key", "refusal_line"]


@dataclass(frozen=True)
class NodeSettings:
    """What a node has to know before it can enroll: a value that travels as one line of JSON, never in argv.

    Attributes:
        coordinator: HOST:PORT.
        key: the job key in hexadecimal.
        name: what the launcher calls this node.
        network_interfaces: names or networks of the interface that its ranks are to use; empty: what leads to the
            coordinator.
        slots: how many ranks it takes; None: the launcher decides.
        patience: how long (s) to try to reach the coordinator, and then to wait for the first order.
        executable: what its ranks run in place of the launcher's interpreter; None: the interpreter that runs this.
        ports: how many free ports it is to name, for a TF_CONFIG.
        mpi: where MPI has started one agent for each rank: the rank, its place on this host, and how many are here.
    """

    coordinator: str
    key: str = field(repr=False)
    name: str
    network_interfaces: tuple[str, ...] = ()
    slots: int | None = None
    patience: float = 120.0
    executable: str | None = None
    ports: int = 0
    mpi: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Facts:
    """What a node says of itself when it enrolls. Whatever another version leaves out is empty.

    Attributes:
        name: what its launcher, or its platform, calls it.
        host: its host name.
        address: where its ranks can be reached.
        version: of tfcollective.
        python: the version of its interpreter.
        executable: what its ranks run.
        packages: the directory of the packages for Horovod's names.
        slots: how many ranks it takes; None: the launcher decides.
        rank: what MPI has given it, if any.
        ports: free ones.
        number: the order of enrolment; the launcher's side fills it in.
    """

    name: str = ""
    host: str = ""
    address: str = ""
    version: str = ""
    python: str = ""
    executable: str = ""
    packages: str = ""
    slots: int | None = None
    rank: int | None = None
    ports: tuple[int, ...] = ()
    number: int = -1


@dataclass(frozen=True)
class FirstOrder:
    """What an :class:`AgentConfig` may come instead of: why the node is to go away."""

    refused: str | None = None


def beat_key(number: int) -> str:
    """Where a node says that it lives, and how it ended."""
    return f"node/{number}/beat"


def orders_key(number: int) -> str:
    """Where a node that was not started by the launcher finds its orders."""
    return f"node/{number}/orders"


def refusal_line(reason: str) -> bytes:
    """The order to go away."""
    return encode_line(FirstOrder(reason))
