"""Everything in one go: the parts that the targets need, one after the other, each with its runners in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from tfcollective.bench.allreduce.analysis import sections
from tfcollective.bench.allreduce.baselines import find_baselines
from tfcollective.bench.allreduce.options import AllreduceOptions
from tfcollective.bench.allreduce.run import run_allreduce
from tfcollective.bench.interleave import Event
from tfcollective.bench.model import Report, RunnerState, RunnerStatus, Sample
from tfcollective.bench.report import Section
from tfcollective.bench.training.options import TrainingOptions
from tfcollective.bench.training.pages import sections as training_sections
from tfcollective.bench.training.run import run_training
from tfcollective.errors import ConfigError, TfCollectiveError

__all__ = ["PARTS", "Part", "merge", "parts_named", "run_suite", "sections_of_suite"]

Watch: TypeAlias = Callable[[int], AbstractContextManager[Callable[[Event], None]]]
_K, _M = 1 << 10, 1 << 20
_STATE_ORDER = (RunnerState.FAILED, RunnerState.RAN, RunnerState.MISSING)


@dataclass(frozen=True)
class Part:
    """A benchmark that the targets need: `run(quick, baselines, command, watch)` measures it."""

    name: str
    group: str
    run: Callable[[bool, str, Sequence[str], Watch], Report]


def _allreduce(quick: AllreduceOptions, full: AllreduceOptions) -> Callable[[bool, str, Sequence[str], Watch], Report]:
    def run(is_quick: bool, baselines: str, command: Sequence[str], watch: Watch) -> Report:
        options = replace(quick if is_quick else full, baselines=baselines)
        if is_quick and find_baselines(options).program is None:
            options = replace(options, runners=tuple(_STAND_INS.get(name, name) for name in options.runners))
        return run_allreduce(options, command, watch)

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
_GRAPH_QUICK = replace(_GRAPH, sizes=(4, 16 * _K, 256 * _K, _M, 16 * _M, 64 * _M), rounds=3, iterations=60)
_CROWD = AllreduceOptions(ranks=(4, 8), runners=("op", "horovod"), caches=("hot",), rounds=3, iterations=60)
_CROWD_QUICK = replace(_CROWD, sizes=(4, 64 * _K, 4 * _M), rounds=1, iterations=30)
_LAB = AllreduceOptions(ranks=(4,), runners=("ctypes",), sizes=(8 * _M, 64 * _M), caches=("hot",), link="1gbit")
_LAB_QUICK = replace(_LAB, sizes=(8 * _M,), rounds=3)


def _training(quick: TrainingOptions, full: TrainingOptions) -> Callable[[bool, str, Sequence[str], Watch], Report]:
    def run(is_quick: bool, baselines: str, command: Sequence[str], watch: Watch) -> Report:
        return run_training(replace(quick if is_quick else full, baselines=baselines), command, watch)

    return run


_MLPS = TrainingOptions(
    models=("mlp1024", "mlp2048"),
    runners=("ours", "ours-keras2", "horovod", "mwms", "ps", "unconnected", "unconnected-keras2"),
    views=("processes",),
    rounds=5,
)
_MLPS_QUICK = replace(
    _MLPS, runners=("ours", "ours-keras2", "horovod", "mwms", "ps", "unconnected"), rounds=1, steps=80, servers=1
)
_CONVNET = TrainingOptions(models=("convnet",), runners=("ours", "unconnected"), rounds=7)
_CONVNET_QUICK = replace(_CONVNET, rounds=1, steps=24)
_ALONE = TrainingOptions(processes=(1,), models=("mlp1024",), runners=("ours", "single"), rounds=7)
_ALONE_QUICK = replace(_ALONE, rounds=1, steps=200)
_HOSTS = TrainingOptions(
    processes=(4,),
    models=("mlp1024",),
    runners=("ours", "ours-keras2", "ours-bf16", "mwms", "ps"),
    links=("1gbit",),
    views=("processes",),
    rounds=3,
    steps=80,
)
_HOSTS_QUICK = replace(_HOSTS, runners=("ours", "mwms", "ps"), rounds=1, steps=40, servers=1)

PARTS: tuple[Part, ...] = (
    Part("2 ranks, C", "allreduce", _allreduce(_TWO_QUICK, _TWO)),
    Part("2 ranks, tf.function", "allreduce", _allreduce(_GRAPH_QUICK, _GRAPH)),
    Part("4 and 8 ranks, C", "allreduce", _allreduce(_MANY_QUICK, _MANY)),
    Part("4 and 8 ranks, tf.function", "allreduce", _allreduce(_CROWD_QUICK, _CROWD)),
    Part("4 namespaces at 1 Gbit/s", "allreduce", _allreduce(_LAB_QUICK, _LAB)),
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
            raise ConfigError(f"--only: there is no group {group!r}; there are {', '.join(known)}")
    return tuple(part for part in PARTS if not groups or part.group in groups)


def run_suite(
    parts: Sequence[Part], quick: bool, baselines: str, command: Sequence[str], watch: Watch, say: Callable[[str], None]
) -> Report:
    """Runs the parts and puts their reports together. A part that cannot run here (namespaces without root) says why,
    and the others go on.

    Raises:
        ConfigError: no part could run.
    """
    reports = []
    notes = []
    for part in parts:
        say(f"== {part.name}")
        try:
            reports.append(part.run(quick, baselines, command, watch))
        except TfCollectiveError as error:
            notes.append(f"{part.name}: {error}")
            say(f"skipped {part.name}: {error}")
    if not reports:
        raise ConfigError("nothing could be measured: " + "; ".join(notes))
    return merge(reports, notes, command)


def merge(reports: Sequence[Report], notes: Sequence[str], command: Sequence[str]) -> Report:
    """One report with all samples of several that ran on the same machine. Rounds of different reports ran at
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
    """Those of all reports; all are lists."""
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
    """One for every runner: failed anywhere, else ran anywhere, else missing."""
    statuses = [status for report in reports for status in report.statuses]
    for runner in dict.fromkeys(status.runner for status in statuses):
        yield min((s for s in statuses if s.runner == runner), key=lambda status: _STATE_ORDER.index(status.state))
