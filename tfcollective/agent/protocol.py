"""What a node's agent and its launcher say to each other besides orders: settings, facts, signs of life, refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from tfcollective.codec import encode_line
from tfcollective.exit_codes import SIGNAL_BASE, ExitCode

__all__ = [
    "End",
    "HOROVOD_PACKAGES",
    "NodeFacts",
    "FirstOrder",
    "NodeSettings",
    "end_key",
    "node_name",
    "orders_key",
    "refusal_line",
]

#: Where this node has the package named ``horovod`` that stands for ours, for ``--horovod-compat``.
HOROVOD_PACKAGES = Path(__file__).resolve().parents[1] / "_horovod"


@dataclass(frozen=True)
class NodeSettings:
    """What an agent has to know before it can enroll: a value that travels as one line of JSON, never in argv.

    Attributes:
        coordinator: HOST:PORT.
        key: the job key in hexadecimal.
        name: what the launcher calls this node.
        network_interfaces: names or networks of the interface that its ranks are to use; empty: what leads to the
            coordinator.
        slots: how many ranks it takes; None: the launcher decides.
        timeout: how long (s) to try to reach the coordinator, and then to wait for the first order.
        executable: what its ranks run in place of the launcher's interpreter; None: the interpreter that runs this.
        ports: how many free ports it is to name, for a TF_CONFIG.
        mpi: where MPI has started one agent for each rank: the rank, its place on this host, and how many are here.
    """

    coordinator: str
    key: str = field(repr=False)
    name: str
    network_interfaces: tuple[str, ...] = ()
    slots: int | None = None
    timeout: float = 120.0
    executable: str | None = None
    ports: int = 0
    mpi: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class NodeFacts:
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
        pid: the agent's process.
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
    pid: int = 0
    number: int = -1


@dataclass(frozen=True)
class FirstOrder:
    """What an :class:`AgentConfig` may come instead of: why the node is to go away."""

    refused: str | None = None


@dataclass(frozen=True)
class End:
    """How an agent ended.

    Attributes:
        failure: what went wrong, or None.
        signal: the name of the signal with which another process than the launcher has asked for the end, or None.
    """

    failure: str | None = None
    signal: str | None = None

    @property
    def exit_code(self) -> int:
        """What a platform, or a person, sees of it."""
        if self.signal is not None:
            return SIGNAL_BASE + Signals[self.signal]
        return ExitCode.OK if self.failure is None else ExitCode.INTERNAL


def node_name(number: int) -> str:
    """The name under which a node's agent gives signs of life."""
    return f"node/{number}"


def end_key(number: int) -> str:
    """Where an agent leaves its :class:`End`."""
    return f"node/{number}/end"


def orders_key(number: int) -> str:
    """Where a node that the launcher holds no pipe to finds its orders."""
    return f"node/{number}/orders"


def refusal_line(reason: str) -> bytes:
    """The order to go away."""
    return encode_line(FirstOrder(reason))
