"""The validated options of ``bench scaling``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective_bench.options import check_above_zero

__all__ = ["ScalingOptions"]

_MOST_AGENTS = 4000
_MOST_RANKS = 64000


@dataclass(frozen=True)
class ScalingOptions:
    """The options of a run.

    Attributes:
        ranks: worlds, by their number of ranks; all on this host.
        tensors: numbers of gradients of a step.
        total_bytes: of all gradients of a step together, whatever their number.
        agents: how many agents join a coordinator at once; empty: none.
        nodes: how many simulated nodes keep a coordinator busy; empty: none.
        ranks_per_node: of each of them.
        busy_s: for how long.
        runners: names; empty: all.
        rounds: turns of everybody.
        iterations: steps per turn.
        deadline_s: a turn that takes longer is ended.
        baselines: where ``tools/baselines.sh`` has put the others; empty: the usual places.
        horovod_python: the interpreter of Horovod's environment; empty: found in `baselines`.
    """

    ranks: tuple[int, ...] = (2, 4, 8, 16)
    tensors: tuple[int, ...] = (10, 100, 1000)
    total_bytes: int = 4 << 20
    agents: tuple[int, ...] = (10, 100, 1000)
    nodes: tuple[int, ...] = (100, 1000)
    ranks_per_node: int = 8
    busy_s: float = 60.0
    runners: tuple[str, ...] = ()
    rounds: int = 3
    iterations: int = 30
    deadline_s: float = 300.0
    baselines: str = ""
    horovod_python: str = ""

    def __post_init__(self) -> None:
        for name, values in (("-np", self.ranks), ("--tensors", self.tensors)):
            if not values or min(values) < 1:
                raise ConfigError(f"{name}: at least one number, each 1 or more")
        if self.agents and not 1 <= min(self.agents) <= max(self.agents) <= _MOST_AGENTS:
            raise ConfigError(f"--agents: numbers from 1 to {_MOST_AGENTS}")
        if self.nodes and not 1 <= min(self.nodes) <= max(self.nodes) <= _MOST_RANKS // max(1, self.ranks_per_node):
            raise ConfigError(f"--nodes: numbers from 1 on, with {_MOST_RANKS} ranks at most")
        check_above_zero(ranks_per_node=self.ranks_per_node, busy=self.busy_s)
        check_above_zero(rounds=self.rounds, iterations=self.iterations, deadline=self.deadline_s)
        if self.total_bytes < 4 * max(self.tensors):
            raise ConfigError(f"--bytes: {max(self.tensors)} tensors need at least {4 * max(self.tensors)} bytes")
        if self.horovod_python and not Path(self.horovod_python).exists():
            raise ConfigError(f"--horovod-python: {self.horovod_python} does not exist")
