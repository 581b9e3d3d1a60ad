"""The validated options of ``bench chaos``."""

from __future__ import annotations

from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective_bench.options import check_above_zero

__all__ = ["FRAMEWORKS", "LEAST_RANKS", "ChaosOptions"]

FRAMEWORKS = ("numpy", "tensorflow")
LEAST_RANKS = 3
_MOST_CALM_S = 120.0
_LEAST_CALM_S = 10.0


@dataclass(frozen=True)
class ChaosOptions:
    """The options of a run.

    Attributes:
        minutes: how long the job is disturbed.
        ranks: of it.
        seed: of the faults and of the data.
        every_s: how far apart faults are on average.
        framework: what the ranks train with: ``numpy`` or ``tensorflow``.
        step_ms: how long a step takes at least.
        calm_s: how long the undisturbed runs are, before and after; 0: a tenth of the disturbed one.
        hang_s: the job hangs when no step is completed for so long.
        references: how many seeds of the data the loss is compared with.
        keep: whether the directories of the jobs stay.
    """

    minutes: float = 60.0
    ranks: int = 4
    seed: int = 1
    every_s: float = 15.0
    framework: str = "numpy"
    step_ms: float = 20.0
    calm_s: float = 0.0
    hang_s: float = 60.0
    references: int = 20
    keep: bool = False

    def __post_init__(self) -> None:
        if self.ranks < LEAST_RANKS:
            raise ConfigError(f"-np: two ranks are lost at once and one has to stay: {LEAST_RANKS} or more")
        if self.framework not in FRAMEWORKS:
            raise ConfigError(f"--framework: expected one of {', '.join(FRAMEWORKS)}, got {self.framework!r}")
        if self.seed < 0:
            raise ConfigError(f"--seed: expected 0 or more, got {self.seed}")
        if self.references < 2:
            raise ConfigError(f"--references: expected 2 or more, got {self.references}")
        check_above_zero(minutes=self.minutes, every=self.every_s, step_ms=self.step_ms, hang=self.hang_s)

    @property
    def seconds(self) -> float:
        """The time (s) for which the job is disturbed."""
        return self.minutes * 60

    @property
    def calm_seconds(self) -> float:
        """The length (s) of each of the two undisturbed runs."""
        return self.calm_s or min(_MOST_CALM_S, max(_LEAST_CALM_S, self.seconds / 10))

    @property
    def leaves(self) -> int:
        """The number of ranks that may be asked to leave: nothing replaces them, and three are needed."""
        return self.ranks - LEAST_RANKS
