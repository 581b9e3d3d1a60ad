"""The values of a benchmark; :mod:`tfcollective._base.codec` writes and reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

__all__ = ["Cell", "Hardware", "Report", "RunnerState", "RunnerStatus", "Sample", "Versions", "select"]

Cell: TypeAlias = str | int | float | bool


class RunnerState(str, Enum):
    """The end of a runner."""

    RAN = "ran"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True)
class Hardware:
    """The machine. `caches` are bytes by level ("L1d", "L2", "L3"); memory is bytes; `load` the averages over
    1, 5 and 15 minutes when the benchmark began: figures of a loaded machine are worth little."""

    cpu: str
    cores: int
    usable_cores: int
    caches: Mapping[str, int]
    memory: int
    kernel: str
    load: tuple[float, float, float]


@dataclass(frozen=True)
class Versions:
    """Versions by name: "tfcollective", "python", "tensorflow", "horovod", ..."""

    packages: Mapping[str, str]


@dataclass(frozen=True)
class Sample:
    """The measurement of a runner in one round.

    Attributes:
        runner: its name.
        row: what was measured: {"bytes": 4096, "ranks": 2, ...}; equal rows are comparable.
        metric: "latency", "cpu", "throughput", ...
        unit: of the values: "s", "samples/s", "bytes", ...
        values: one for every repetition inside the round.
        round: rounds begin with 0; runners of the same round ran next to each other.
    """

    runner: str
    row: Mapping[str, Cell]
    metric: str
    unit: str
    values: tuple[float, ...]
    round: int


@dataclass(frozen=True)
class RunnerStatus:
    """The outcome of a runner. `detail` says how to install it (missing) or is the last line of its output (failed)."""

    runner: str
    state: RunnerState
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """A run of a benchmark.

    `started` and `finished` are seconds since 1970-01-01 UTC. `attachments` are JSON values other than samples.
    `format` is the number of this form of reports.
    """

    title: str
    command: tuple[str, ...]
    hardware: Hardware
    versions: Versions
    settings: Mapping[str, Any]
    samples: tuple[Sample, ...]
    statuses: tuple[RunnerStatus, ...]
    started: float
    finished: float
    notes: tuple[str, ...] = field(default=())
    attachments: Mapping[str, Any] = field(default_factory=dict)
    format: Literal[1] = 1


def select(
    samples: Sequence[Sample], *, runner: str | None = None, metric: str | None = None, **row: Cell
) -> Iterator[Sample]:
    """The samples of a runner and a metric whose row has these cells (and maybe more)."""
    for sample in samples:
        wanted = (runner is None or sample.runner == runner) and (metric is None or sample.metric == metric)
        if wanted and all(sample.row.get(name) == value for name, value in row.items()):
            yield sample
