"""Runs all parts that the targets need, one after the other, each with its runners in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import ConfigError, TfCollectiveError
from tfcollective._base.log import get_logger
from tfcollective_bench.allreduce.analysis import sections
from tfcollective_bench.allreduce.options import AllreduceOptions
from tfcollective_bench.allreduce.run import run_allreduce
from tfcollective_bench.baselines import find_baselines
from tfcollective_bench.interleave import Watch
from tfcollective_bench.model import Report, RunnerState, RunnerStatus, Sample
from tfcollective_bench.report import Section
from tfcollective_bench.training.options import TrainingOptions
from tfcollective_bench.training.pages import sections as training_sections
from tfcollective_bench.training.run import run_training

__all__ = ["PARTS", "QUICK_S", "Circumstances", "Part", "merge", "parts_named", "run_suite", "sections_of_suite"]

#: Seconds after which no turn of a quick run begins.
QUICK_S = 520.0
_QUICK_TURN_S = 70.0
_LEAST_S = 1e-3
_LOG = get_logger(__name__)
_K, _M = 1 << 10, 1 << 20
_STATE_ORDER = (RunnerState.FAILED, RunnerState.RAN, RunnerState.MISSING)


@dataclass(frozen=True)
class Circumstances:
    """The settings with which parts are run.

    Attributes:
        quick: fewer sizes and rounds, and an end to the time.
        baselines: where ``tools/baselines.sh`` has put the others; empty: the usual places.
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.
        until: no turn begins after it.
    """

    quick: bool
    baselines: str
    command: Sequence[str]
    watch: Watch
    until: Deadline = field(default_factory=Deadline.never)

    @property
    def budget_s(self) -> float:
        """Seconds that are left; 0 where there is no end."""
        remaining = self.until.remaining()
        return 0.0 if math.isinf(remaining) else max(remaining, _LEAST_S)


@dataclass(frozen=True)
class Part:
    """A benchmark that the targets need."""

    name: str
    group: str
    run: Callable[[Circumstances], Report]


def _allreduce(quick: AllreduceOptions, full: AllreduceOptions) -> Callable[[Circumstances], Report]:
    def run(how: Circumstances) -> Report:
        options = replace(quick if how.quick else full, baselines=how.baselines, budget_s=how.budget_s)
        if how.quick:
            options = replace(options, deadline_s=_QUICK_TURN_S)
        if how.quick and find_baselines(how.baselines).program is None:
            options = replace(options, runners=tuple(_STAND_INS.get(name, name) for name in options.runners))
        return run_allreduce(options, how.command, how.watch)

    return run


# Where the timing programs are not built.
_STAND_INS = {"c": "ctypes", "openmpi-c": "openmpi"}
_C_RUNNERS = ("c", "ctypes", "openmpi-c", "openmpi")
_TWO = AllreduceOptions(runners=_C_RUNNERS, caches=("hot",), rounds=9)
_TWO_QUICK = replace(
    _TWO, sizes=(4, _K, 16 * _K, 64 * _K, 256 * _K, _M, 4 * _M, 16 * _M, 64 * _M), rounds=5, runners=("c", "openmpi-c")
)
_MANY = replace(_TWO, ranks=(4, 8), rounds=5)
_MANY_QUICK = replace(
    _MANY, sizes=(64 * _K, 256 * _K, _M, 4 * _M, 64 * _M), rounds=3, iterations=50, runners=("c", "openmpi-c")
)
_GRAPH = AllreduceOptions(runners=("op", "horovod"), transports=("auto", "tcp"), caches=("hot",), rounds=7)
_GRAPH_QUICK = replace(_GRAPH, sizes=(4, 16 * _K, 256 * _K, _M, 16 * _M, 64 * _M), rounds=2, iterations=60)
_CROWD = AllreduceOptions(ranks=(4, 8), runners=("op", "horovod"), caches=("hot",), rounds=3, iterations=60)
_CROWD_QUICK = replace(_CROWD, sizes=(4, 64 * _K, 4 * _M), rounds=1, iterations=30)
_TESTBED = AllreduceOptions(ranks=(4,), runners=("ctypes",), sizes=(8 * _M, 64 * _M), caches=("hot",), links=("1gbit",))
_TESTBED_QUICK = replace(_TESTBED, sizes=(8 * _M,), rounds=3)


def _training(quick: TrainingOptions, full: TrainingOptions) -> Callable[[Circumstances], Report]:
    def run(how: Circumstances) -> Report:
        options = replace(quick if how.quick else full, baselines=how.baselines, budget_s=how.budget_s)
        if how.quick:
            options = replace(options, deadline_s=_QUICK_TURN_S)
        return run_training(options, how.command, how.watch)

    return run


_MLPS = TrainingOptions(
    models=("mlp1024", "mlp2048"),
    runners=("ours", "ours-unmodified", "ours-keras2", "horovod", "mwms", "ps", "unconnected", "unconnected-keras2"),
    views=("processes",),
    rounds=5,
)
_MLPS_QUICK = replace(
    _MLPS,
    runners=("ours", "ours-unmodified", "ours-keras2", "horovod", "mwms", "ps", "unconnected"),
    rounds=1,
    steps=80,
    servers=1,
    steps_at_a_time=(10,),
)
_CONVNET = TrainingOptions(
    models=("convnet",), runners=("ours", "ours-unmodified", "unconnected"), views=("processes",), rounds=7
)
_CONVNET_QUICK = replace(_CONVNET, rounds=1, steps=24)
_ALONE = TrainingOptions(processes=(1,), models=("mlp1024",), runners=("ours", "single"), rounds=7)
_ALONE_QUICK = replace(_ALONE, rounds=3, steps=100)
_HOSTS = TrainingOptions(
    processes=(4,),
    models=("mlp1024",),
    runners=("ours", "ours-keras2", "ours-bf16", "mwms", "ps"),
    links=("1gbit",),
    views=("processes",),
    rounds=3,
    steps=80,
)
_HOSTS_QUICK = replace(
    _HOSTS, runners=("ours", "ours-bf16", "mwms", "ps"), rounds=1, steps=40, servers=1, steps_at_a_time=(10,)
)

PARTS: tuple[Part, ...] = (
    Part("2 ranks, C", "allreduce", _allreduce(_TWO_QUICK, _TWO)),
    Part("2 ranks, tf.function", "allreduce", _allreduce(_GRAPH_QUICK, _GRAPH)),
    Part("4 and 8 ranks, C", "allreduce", _allreduce(_MANY_QUICK, _MANY)),
    Part("4 and 8 ranks, tf.function", "allreduce", _allreduce(_CROWD_QUICK, _CROWD)),
    Part("4 namespaces at 1 Gbit/s", "allreduce", _allreduce(_TESTBED_QUICK, _TESTBED)),
    Part("training MLPs on 2 processes", "training", _training(_MLPS_QUICK, _MLPS)),
    Part("training a convolutional network on 2 processes", "training", _training(_CONVNET_QUICK, _CONVNET)),
    Part("training on 1 process", "training", _training(_ALONE_QUICK, _ALONE)),
    Part("training on 4 namespaces at 1 Gbit/s", "training", _training(_HOSTS_QUICK, _HOSTS)),
)


def parts_named(groups: Sequence[str]) -> tuple[Part, ...]:
    """The parts of these groups; all if there are none. ConfigError for an unknown one."""
    known = dict.fromkeys(part.group for part in PARTS)
    for group in groups:
        if group not in known:
            raise ConfigError(f"--only: unknown group {group!r}: expected one of {', '.join(known)}")
    return tuple(part for part in PARTS if not groups or part.group in groups)


def run_suite(
    parts: Sequence[Part],
    how: Circumstances,
    say: Callable[[str], None],
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Runs the parts and puts their reports together. A part that cannot run here (namespaces without root) or breaks
    says why, and the others go on.

    Args:
        say: takes what is done, for people.
        keep: is given what has been measured so far, after every part.

    Raises:
        ConfigError: no part could run.
    """
    reports: list[Report] = []
    notes: list[str] = []
    for number, part in enumerate(parts, 1):
        say(f"== part {number} of {len(parts)}: {part.name}")
        reason = "the time was up before it" if how.until.expired() else _run_part(part, how, reports)
        if reason:
            notes.append(f"{part.name}: {reason}")
            say(f"skipped {part.name}: {reason}")
        elif reports:
            keep(merge(reports, notes, how.command))
    if not reports:
        raise ConfigError("nothing could be measured: " + "; ".join(notes))
    return merge(reports, notes, how.command)


def _run_part(part: Part, how: Circumstances, reports: list[Report]) -> str:
    """Adds the part's report; returns why there is none."""
    try:
        reports.append(part.run(how))
    except TfCollectiveError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001
        # An hour of other parts' figures must not be lost to a mistake in this one.
        _LOG.exception("the part %s broke", part.name)
        return f"{type(error).__name__}: {error}"
    return ""


def merge(reports: Sequence[Report], notes: Sequence[str], command: Sequence[str]) -> Report:
    """Merges reports of the same machine into one with all their samples. Rounds of different reports ran at
    different times, so they get different numbers."""
    samples: list[Sample] = []
    offset = 0
    for report in reports:
        samples.extend(replace(sample, round=sample.round + offset) for sample in report.samples)
        offset += 1 + max((sample.round for sample in report.samples), default=-1)
    versions = {name: version for report in reports for name, version in report.versions.packages.items()}
    return replace(
        reports[0],
        title="Benchmarks",
        command=tuple(command),
        versions=replace(reports[0].versions, packages=versions),
        settings={"parts": [report.settings for report in reports]},
        samples=tuple(samples),
        statuses=tuple(_statuses(reports)),
        finished=time.time(),
        notes=tuple(dict.fromkeys([*(note for report in reports for note in report.notes), *notes])),
        attachments=_attachments(reports),
    )


def _attachments(reports: Sequence[Report]) -> dict[str, list[object]]:
    """Returns the attachments of all reports; all are lists."""
    found: dict[str, list[object]] = {}
    for report in reports:
        for name, entries in report.attachments.items():
            found.setdefault(name, []).extend(entries)
    return found


def sections_of_suite(report: Report) -> list[Section]:
    """The parts of the page of a merged report, by what its rows are about."""
    latencies = tuple(sample for sample in report.samples if "bytes" in sample.row)
    trained = tuple(sample for sample in report.samples if "model" in sample.row)
    return [
        *(sections(replace(report, samples=latencies)) if latencies else []),
        *(training_sections(replace(report, samples=trained)) if trained else []),
    ]


def _statuses(reports: Sequence[Report]) -> Iterator[RunnerStatus]:
    """Returns one status for every runner: failed anywhere, else ran anywhere, else missing."""
    statuses = [status for report in reports for status in report.statuses]
    for runner in dict.fromkeys(status.runner for status in statuses):
        yield min((s for s in statuses if s.runner == runner), key=lambda status: _STATE_ORDER.index(status.state))
