"""What a node and its launcher say to each other: the settings, the pulse and the orders."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from tfcollective.errors import ConfigError

__all__ = ["BEAT_S", "LOST_S", "NodeSettings", "beat_key", "orders_key", "refusal_line"]

# Until a node knows what its job allows. All ranks end within 8 s more of the moment in which a host is cut off.
LOST_S = 15.0
BEAT_S = 1.5


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

    def to_line(self) -> bytes:
        """One line of JSON that :meth:`from_line` reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> NodeSettings:
        """Reads what :meth:`to_line` wrote; ConfigError when it is something else."""
        try:
            document = json.loads(line)
            return cls(network_interfaces=tuple(document.pop("network_interfaces")), **document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the node's settings cannot be read: {error!r}") from error


def beat_key(number: int) -> str:
    """Where a node says that it lives, and how it ended."""
    return f"node/{number}/beat"


def orders_key(number: int) -> str:
    """Where a node that was not started by the launcher finds its orders."""
    return f"node/{number}/orders"


def refusal_line(reason: str) -> bytes:
    """The order to go away."""
    return json.dumps({"refused": reason}).encode() + b"\n"
