"""Runs the all-reduce benchmark: cases in turns, lines of JSON to samples."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfcollective._base.codec import to_document
from tfcollective_bench import experiment
from tfcollective_bench.allreduce.options import AllreduceOptions
from tfcollective_bench.allreduce.points import make_points
from tfcollective_bench.allreduce.runners import Case, Runner, case_name, chosen, variant_of
from tfcollective_bench.baselines import Baselines, find_baselines
from tfcollective_bench.experiment import run, statuses
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Watch
from tfcollective_bench.model import Cell, Hardware, Report, Sample
from tfcollective_bench.options import LOOPBACK

__all__ = ["run_allreduce"]

_LEAST_FLUSH = 64 << 20


def run_allreduce(options: AllreduceOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.

    Raises:
        ConfigError: an unknown runner.
        UnsupportedError: no link can be had: network namespaces need root.
    """
    runners = chosen(options.runners)
    found = find_baselines(options.baselines, mpi_python=options.mpi_python, horovod_python=options.horovod_python)
    hardware = probe_hardware()
    missing = {runner.name: hint for runner in runners if (hint := _missing(runner, found, options))}
    there = [runner for runner in runners if runner.name not in missing]
    cases = {case_name(case): case for runner in there for case in _cases(runner, options)}
    started = time.time()
    measured = run(
        [_experiment_case(name, case, runners, found, options, hardware) for name, case in cases.items()],
        lambda name, record: samples_of(cases[name], options.dtype, record.round, record.content),
        rounds=options.rounds,
        watch=watch,
        budget_s=options.budget_s,
    )
    return Report(
        title="All-reduce benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=_versions(found),
        settings=to_document(options),
        samples=tuple(measured.samples),
        statuses=tuple(statuses({runner.name: runner.title for runner in runners}, missing, measured)),
        started=started,
        finished=time.time(),
        notes=tuple(_notes(options)),
    )


def _missing(runner: Runner, found: Baselines, options: AllreduceOptions) -> str:
    if LOOPBACK not in options.links and not runner.elsewhere:
        return f"its ranks run on this host only: --link {LOOPBACK}"
    return runner.missing(found)


def _cases(runner: Runner, options: AllreduceOptions) -> Iterator[Case]:
    for link in dict.fromkeys(options.links):
        for ranks in options.ranks:
            if link != LOOPBACK and runner.elsewhere:
                yield Case(runner.name, ranks, "auto" if runner.ours else "", link)
            for transport in (options.transports if runner.ours else ("",)) if link == LOOPBACK else ():
                yield Case(runner.name, ranks, transport)


def _experiment_case(
    name: str, case: Case, runners: Sequence[Runner], found: Baselines, options: AllreduceOptions, hardware: Hardware
) -> experiment.Case:
    """The case as the experiment takes it: with a link of its own there are as many hosts as ranks."""
    runner = next(runner for runner in runners if runner.name == case.runner)
    points = make_points(options.sizes, options.caches, options.iterations)
    flush = max(_LEAST_FLUSH, 2 * max(hardware.caches.values(), default=0)) if "cold" in options.caches else 0
    variant = variant_of(runner, case, found, options, points, flush)
    place = (case.link, case.ranks) if case.link else experiment.HERE
    return experiment.Case(name, case.runner, lambda _testbed: variant, place)


def samples_of(case: Case, dtype: str, number: int, content: Mapping[str, Any]) -> Iterator[Sample]:
    """The samples of one line of a worker: what measure.py prints."""
    row: dict[str, Cell] = {"bytes": content["bytes"], "ranks": case.ranks, "dtype": dtype, "cache": content["cache"]}
    if case.transport:
        row["transport"] = case.transport
    if case.link:
        row["link"] = case.link
    yield Sample(case.runner, row, "latency", "s", tuple(content["times"]), number)
    yield Sample(case.runner, row, "cpu", "s", (content["cpu"],), number)
    yield Sample(case.runner, row, "overhead", "s", (content["overhead"],), number)


def _versions(found: Baselines) -> Any:
    external = {}
    if found.horovod_python is not None:
        external["horovod"] = found.horovod_python
    if found.mpi_python is not None:
        external["mpi"] = found.mpi_python
    return probe_versions(external, [[found.mpirun, "--version"]] if found.mpirun else [])


def _notes(options: AllreduceOptions) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    crowded = [str(ranks) for ranks in options.ranks if ranks > cores]
    yield "Every rank of every runner stays on a core of its own where there are enough."
    if crowded:
        yield f"Not so with {', '.join(crowded)} ranks on {cores} cores: those are not pinned."
