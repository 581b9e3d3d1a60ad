"""The validated options of ``bench simulate``."""

from __future__ import annotations

from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective_bench.options import check_above_zero, is_rate

__all__ = ["MOST_RANKS", "SimulateOptions"]

MOST_RANKS = 4096
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class SimulateOptions:
    """The options of a run.

    Attributes:
        ranks: worlds to predict, one rank a host.
        sizes: bytes of the buffers.
        links: rates of the hosts' links.
        alpha: seconds of latency; 0: from what was measured, or a usual one.
        copy: seconds a byte on its way through the processors; 0: likewise.
        hosts: worlds to measure, each rank in a network namespace of its own; empty: nothing is measured.
        rounds: turns of every world that is measured.
        deadline_s: a turn that takes longer is ended.
    """

    ranks: tuple[int, ...] = tuple(8 << power for power in range(10))
    sizes: tuple[int, ...] = (4, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
    links: tuple[str, ...] = ("1gbit", "10gbit")
    alpha: float = 0.0
    copy: float = 0.0
    hosts: tuple[int, ...] = ()
    rounds: int = 3
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.ranks or not 2 <= min(self.ranks) <= max(self.ranks) <= MOST_RANKS:
            raise ConfigError(f"-np: numbers of ranks from 2 to {MOST_RANKS}")
        if not self.sizes or not 1 <= min(self.sizes) <= max(self.sizes) <= _MOST_BYTES:
            raise ConfigError("--sizes: sizes up to 1G")
        for link in self.links:
            if not is_rate(link):
                raise ConfigError(f"--link: {link!r} is no rate; write for example 1gbit")
        if not self.links:
            raise ConfigError("--link: at least one rate such as 1gbit")
        if self.hosts and not 2 <= min(self.hosts) <= max(self.hosts) <= 64:
            raise ConfigError("--hosts: numbers of namespaces from 2 to 64")
        if not min(self.alpha, self.copy) >= 0:
            raise ConfigError("--alpha and --copy: numbers above 0, or left out: then as measured")
        check_above_zero(rounds=self.rounds, deadline=self.deadline_s)
