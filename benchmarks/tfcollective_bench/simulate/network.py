"""The model of hosts and links: latency, rate, and what processors do to a byte. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfcollective_bench.testbed import burst_bytes, parse_rate
from tfcollective_bench.wire import PAYLOAD

__all__ = ["Network", "network_of", "ring_bound"]


@dataclass(frozen=True)
class Network:
    """Equal hosts, one rank each, with a link each to a switch that is never in the way.

    A message of n bytes leaves its host after those before it, takes n x beta on the link (at least n x copy), and is
    there alpha later. Up to `burst` bytes pass a link that has been idle at once, as a token bucket lets them. Bytes
    that arrive in scratch memory cost their rank n x gamma, when it waits for them.

    Attributes:
        alpha: seconds from the end of a message on the link to the receiver that goes on.
        beta: seconds a byte of payload on the link, headers included; 0: not limited.
        gamma: seconds to combine a byte that has arrived with one that is there.
        copy: seconds a byte that processors take to hand a byte from one host to the other.
        burst: bytes.
    """

    alpha: float
    beta: float
    gamma: float
    copy: float = 0.0
    burst: float = 0.0

    def on_shared_cores(self, hosts: int, cores: int) -> Network:
        """The same with so many hosts on one machine: what processors do takes longer when there are fewer of them."""
        crowd = max(1.0, hosts / cores)
        return replace(self, gamma=self.gamma * crowd, copy=self.copy * crowd)


def network_of(link: str, alpha: float, gamma: float, copy: float, *, shaped: bool) -> Network:
    """The network of a rate such as "1gbit". `shaped`: as :mod:`~tfcollective_bench.testbed` shapes it, with its burst.

    Raises:
        ConfigError: not a rate.
    """
    bits = parse_rate(link)
    if bits is None:
        return Network(alpha, 0.0, gamma, copy)
    return Network(alpha, 8 / bits / PAYLOAD, gamma, copy, burst_bytes(bits) * PAYLOAD if shaped else 0.0)


def ring_bound(network: Network, ranks: int, nbytes: int) -> float:
    """Seconds that the bytes of an all-reduce take on the link at least: 2(p-1)/p of the buffer."""
    return 2 * (ranks - 1) / ranks * nbytes * network.beta
