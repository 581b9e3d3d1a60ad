"""What a benchmark knows and keeps: values that go to JSON and come back equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from tfcollective.errors import InvalidArgumentError

__all__ = ["FORMAT", "Cell", "Hardware", "Report", "RunnerState", "RunnerStatus", "Sample", "Versions", "select"]

FORMAT = 1
Cell: TypeAlias = str | int | float | bool
_Value = TypeVar("_Value")


class RunnerState(str, Enum):
    """What became of a runner."""

    RAN = "ran"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True)
class Hardware:
    """The machine. `caches` are bytes by level ("L1d", "L2", "L3"); memory is bytes; `load` the averages over
    1, 5 and 15 minutes when the benchmark began: a loaded machine's figures are no figures."""

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
    """What one runner measured in one round.

    Attributes:
        runner: who.
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
    """What became of a runner: `detail` is how to install it (missing) or the last line of its output (failed)."""

    runner: str
    state: RunnerState
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """One run of a benchmark. `started` and `finished` are seconds since 1970-01-01 UTC; `attachments` are JSON values
    that are no samples."""

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

    def to_json(self) -> dict[str, Any]:
        """As :func:`json.dumps` takes it."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Report:
        """The report that ``to_json`` has written; InvalidArgumentError when it is something else."""
        if document.get("format") != FORMAT:
            raise InvalidArgumentError(f"not a report of format {FORMAT}: format is {document.get('format')!r}")
        try:
            return cls(
                title=document["title"],
                command=tuple(document["command"]),
                hardware=_hardware(document["hardware"]),
                versions=Versions(dict(document["versions"]["packages"])),
                settings=dict(document["settings"]),
                samples=tuple(_sample(entry) for entry in document["samples"]),
                statuses=tuple(_status(entry) for entry in document["statuses"]),
                started=document["started"],
                finished=document["finished"],
                notes=tuple(document["notes"]),
                attachments=dict(document.get("attachments", {})),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"not a report: {type(error).__name__}: {error}") from error


def select(
    samples: Sequence[Sample], *, runner: str | None = None, metric: str | None = None, **row: Cell
) -> Iterator[Sample]:
    """The samples of a runner and a metric whose row has these cells (and maybe more)."""
    for sample in samples:
        wanted = (runner is None or sample.runner == runner) and (metric is None or sample.metric == metric)
        if wanted and all(sample.row.get(name) == value for name, value in row.items()):
            yield sample


def _only(kind: type[_Value], document: Mapping[str, Any], **replaced: Any) -> _Value:
    values = {entry.name: document[entry.name] for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**values, **replaced})


def _hardware(document: Mapping[str, Any]) -> Hardware:
    one, five, fifteen = document["load"]
    return _only(Hardware, document, load=(one, five, fifteen), caches=dict(document["caches"]))


def _sample(document: Mapping[str, Any]) -> Sample:
    return _only(Sample, document, row=dict(document["row"]), values=tuple(document["values"]))


def _status(document: Mapping[str, Any]) -> RunnerStatus:
    return _only(RunnerStatus, document, state=RunnerState(document["state"]))
