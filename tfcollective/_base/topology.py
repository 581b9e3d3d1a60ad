"""Endpoints, members, worlds and placements: who is where. Values only."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective._base.tasks import TaskKey

_MAX_PORT = 65535
_PORT_DIGITS = 5


@dataclass(frozen=True)
class Endpoint:
    """A host and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads ``host:port`` or ``[v6 address]:port``; raises ConfigError for anything else."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        if not colon or not host or not port.isascii() or not port.isdigit() or (":" in host and not bracketed):
            raise ConfigError(f"expected HOST:PORT, got {text!r}")
        if not host.isprintable() or any(mark in host for mark in " /"):
            raise ConfigError(f"an endpoint is written HOST:PORT; {host!r} is the name of no host")
        if len(port) > _PORT_DIGITS or not 0 < int(port) <= _MAX_PORT:
            raise ConfigError(f"expected a port from 1 to {_MAX_PORT}, got {port:.20}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class PortRange:
    """The TCP ports from ``low`` to ``high``."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """Reads ``low-high``; raises ConfigError for anything else."""
        low, dash, high = text.strip().partition("-")
        if not dash or not all(one.isascii() and one.isdigit() and len(one) <= _PORT_DIGITS for one in (low, high)):
            raise ConfigError(f"expected LOW-HIGH, two ports such as 29500-29600, got {text!r}")
        if not 0 < int(low) <= int(high) <= _MAX_PORT:
            raise ConfigError(f"expected ports from 1 to {_MAX_PORT}, the lower one first, got {text!r}")
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


def is_loopback(address: str) -> bool:
    """True if an address, not a name, is one of the loopback interface."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


@dataclass(frozen=True)
class Placement:
    """A rank's place in the world, in the terms of Horovod."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


SINGLE = Placement(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


@dataclass(frozen=True)
class Member:
    """A process that takes part in collectives.

    Attributes:
        task: its role.
        rank: its rank in this generation.
        node: the id of its node; members of one node can share memory.
        pid: its process id on that node.
        address: where its peers reach it; opaque, from the native listener.
    """

    task: TaskKey
    rank: int
    node: str
    pid: int
    address: str


@dataclass(frozen=True)
class World:
    """The members of one generation, in rank order."""

    generation: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if [member.rank for member in self.members] != list(range(len(self.members))):
            raise ValueError("the members of a world stand in rank order, without gaps")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in rank order."""
        return tuple(member.address for member in self.members)

    @property
    def homogeneous(self) -> bool:
        """True if every node has the same number of ranks."""
        return len({len(ranks) for ranks in self._ranks_by_node().values()}) <= 1

    def member(self, task: TaskKey) -> Member:
        """The member with this role; KeyError if there is none."""
        for member in self.members:
            if member.task == task:
                return member
        raise KeyError(str(task))

    def placement(self, task: TaskKey) -> Placement:
        """The place of ``task``. Nodes are counted in the order of their lowest ranks.

        ``cross_rank`` and ``cross_size`` count the nodes that have a member of the same local rank.
        """
        me = self.member(task)
        by_node = self._ranks_by_node()
        local = by_node[me.node]
        local_rank = local.index(me.rank)
        cross = [node for node, ranks in by_node.items() if len(ranks) > local_rank]
        return Placement(
            rank=me.rank,
            size=self.size,
            local_rank=local_rank,
            local_size=len(local),
            cross_rank=cross.index(me.node),
            cross_size=len(cross),
        )

    def _ranks_by_node(self) -> dict[str, list[int]]:
        by_node: dict[str, list[int]] = {}
        for member in self.members:
            by_node.setdefault(member.node, []).append(member.rank)
        return by_node
