"""The validated options of ``bench allreduce``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective_bench.allreduce.points import CACHES
from tfcollective_bench.options import LOOPBACK, check_above_zero, check_links
from tfcollective_bench.units import bytes_text

__all__ = ["DTYPES", "QUICK_SIZES", "SIZES", "TRANSPORTS", "AllreduceOptions", "sizes_between"]

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
TRANSPORTS = ("auto", "shm", "tcp")
SIZES = tuple(4 << 2 * power for power in range(13))  # 4 bytes to 64 MiB
QUICK_SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
_FACTOR = 4


@dataclass(frozen=True)
class AllreduceOptions:
    """The options of a run.

    Attributes:
        ranks: worlds to measure, by their number of ranks.
        sizes: bytes, ascending.
        dtype: of the elements.
        runners: names; empty: all.
        rounds: turns of every runner.
        iterations: of small sizes per turn; large ones get fewer.
        transports: for our runners; shm is auto that fails when memory is not shared.
        caches: hot, cold.
        deadline_s: a runner is killed when one turn takes longer.
        baselines: where ``tools/baselines.sh`` has put the others; empty: the usual places.
        horovod_python: the interpreter of Horovod's environment; empty: found in `baselines`.
        mpi_python: likewise, of mpi4py's.
        links: ``loopback``: all ranks on this host; or rates ("1gbit"): each on a host of its own, a network namespace.
        budget_s: no turn begins when so many seconds have gone; 0: all turns are taken.
    """

    ranks: tuple[int, ...] = (2,)
    sizes: tuple[int, ...] = SIZES
    dtype: str = "float32"
    runners: tuple[str, ...] = ()
    rounds: int = 5
    iterations: int = 200
    transports: tuple[str, ...] = ("auto",)
    caches: tuple[str, ...] = CACHES
    deadline_s: float = 300.0
    baselines: str = ""
    horovod_python: str = ""
    mpi_python: str = ""
    links: tuple[str, ...] = (LOOPBACK,)
    budget_s: float = 0.0

    def __post_init__(self) -> None:
        for name, values, least in (("-np", self.ranks, 1), ("--sizes", self.sizes, 1)):
            if not values or min(values) < least:
                raise ConfigError(f"{name}: at least one number, each {least} or more")
        check_above_zero(rounds=self.rounds, iterations=self.iterations, deadline=self.deadline_s)
        _check("--dtype", (self.dtype,), DTYPES)
        _check("--transport", self.transports, TRANSPORTS)
        _check("--caches", self.caches, CACHES)
        check_links(self.links)
        if self.links != (LOOPBACK,) and self.transports != ("auto",):
            raise ConfigError("--link: rates go with no --transport")
        for name, python in (("--horovod-python", self.horovod_python), ("--mpi-python", self.mpi_python)):
            if python and not Path(python).exists():
                raise ConfigError(f"{name}: {python} does not exist")


def _check(name: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(known)}")


def sizes_between(least: int, most: int) -> tuple[int, ...]:
    """Sizes from `least` to `most`, each four times the last; `most` itself at the end."""
    if least > most:
        raise ConfigError(f"--min {bytes_text(least)} is above --max {bytes_text(most)}")
    sizes = []
    while least < most:
        sizes.append(least)
        least *= _FACTOR
    return (*sizes, most)
