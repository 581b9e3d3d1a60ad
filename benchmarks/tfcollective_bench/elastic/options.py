"""The validated options of ``bench elastic``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective_bench.options import check_above_zero

__all__ = ["ElasticOptions"]


@dataclass(frozen=True)
class ElasticOptions:
    """The options of a run.

    Attributes:
        ranks: of each job, once it has grown by one; all on this host.
        megabytes: of the model.
        runners: names; empty: all.
        rounds: turns of each runner; in each it loses one rank, another one from round to round.
        calm_s: how long a job trains before each change: a spare process, where a library keeps one, takes a while.
        deadline_s: a turn that takes longer is ended.
        baselines: where ``tools/baselines.sh`` has put the others; empty: the usual places.
        horovod_python: the interpreter of Horovod's environment; empty: found in `baselines`.
    """

    ranks: int = 3
    megabytes: int = 25
    runners: tuple[str, ...] = ()
    rounds: int = 10
    calm_s: float = 10.0
    deadline_s: float = 300.0
    baselines: str = ""
    horovod_python: str = ""

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ConfigError("-np: one rank is lost and one has to stay: 2 or more")
        check_above_zero(megabytes=self.megabytes, rounds=self.rounds, calm=self.calm_s, deadline=self.deadline_s)
        if self.horovod_python and not Path(self.horovod_python).exists():
            raise ConfigError(f"--horovod-python: {self.horovod_python} does not exist")
