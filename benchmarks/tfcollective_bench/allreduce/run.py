"""Runs the all-reduce benchmark: cases in turns, lines of JSON to samples."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any

from tfcollective.clock import Deadline
from tfcollective.errors import LaunchError, UnsupportedError
from tfcollective_bench.allreduce.options import AllreduceOptions
from tfcollective_bench.allreduce.points import make_points
from tfcollective_bench.allreduce.runners import Case, Runner, case_name, chosen, variant_of
from tfcollective_bench.baselines import Baselines, find_baselines
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Event, Failure, Record, Variant, Watch, interleave
from tfcollective_bench.links import LOOPBACK
from tfcollective_bench.model import Cell, Hardware, Report, RunnerState, RunnerStatus, Sample
from tfcollective_bench.testbed import NetnsTestbed, opened

__all__ = ["run_allreduce"]

_LEAST_FLUSH = 64 << 20


def run_allreduce(options: AllreduceOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that is told every event.

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
    variants = {name: _variant(case, runners, found, options, hardware) for name, case in cases.items()}
    started = time.time()
    samples, failures, refused = _measure(variants, cases, options, watch)
    if refused and not samples and not failures:
        raise UnsupportedError(f"{'; '.join(dict.fromkeys(refused.values()))} (the link {LOOPBACK} needs neither)")
    return Report(
        title="All-reduce benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=_versions(found),
        settings=options.to_json(),
        samples=tuple(samples),
        statuses=(*_statuses(runners, missing, failures), *_links(refused)),
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


def _variant(
    case: Case, runners: Sequence[Runner], found: Baselines, options: AllreduceOptions, hardware: Hardware
) -> Variant:
    runner = next(runner for runner in runners if runner.name == case.runner)
    points = make_points(options.sizes, options.caches, options.iterations)
    flush = max(_LEAST_FLUSH, 2 * max(hardware.caches.values(), default=0)) if "cold" in options.caches else 0
    return variant_of(runner, case, found, options, points, flush)


def _measure(
    variants: Mapping[str, Variant], cases: Mapping[str, Case], options: AllreduceOptions, watch: Watch
) -> tuple[list[Sample], list[Failure], dict[str, str]]:
    """Samples, failures, and why a link could not be had."""
    samples: list[Sample] = []
    failures: list[Failure] = []
    refused: dict[str, str] = {}
    until = Deadline.after(options.budget_s) if options.budget_s else None
    with watch(len(variants) * options.rounds) as tell:
        for link, ranks in _places(cases.values()):
            here = [variants[name] for name, case in cases.items() if _place(case) == (link, ranks)]
            try:
                with opened(NetnsTestbed(ranks, link)) if link else nullcontext():
                    for event in _turns(here, options.rounds, until):
                        tell(event)
                        if isinstance(event, Record):
                            samples.extend(samples_of(cases[event.variant], options.dtype, event.round, event.content))
                        elif isinstance(event, Failure):
                            failures.append(event)
            except LaunchError as error:
                refused[link] = str(error)
    return samples, failures, refused


def _place(case: Case) -> tuple[str, int]:
    """What has to be there for a case: a test bed has as many hosts as ranks."""
    return (case.link, case.ranks if case.link else 0)


def _places(cases: Iterable[Case]) -> Iterator[tuple[str, int]]:
    yield from dict.fromkeys(map(_place, cases))


def _turns(variants: Sequence[Variant], rounds: int, until: Deadline | None) -> Iterator[Event]:
    with closing(interleave(variants, rounds, until=until)) as events:
        yield from events


def _links(refused: Mapping[str, str]) -> Iterator[RunnerStatus]:
    for link, reason in refused.items():
        yield RunnerStatus(f"link {link}", RunnerState.MISSING, reason)


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


def _statuses(
    runners: Sequence[Runner], missing: Mapping[str, str], failures: Sequence[Failure]
) -> Iterator[RunnerStatus]:
    for runner in runners:
        failed = [failure for failure in failures if failure.variant.startswith(f"{runner.name},")]
        if runner.name in missing:
            yield RunnerStatus(runner.name, RunnerState.MISSING, missing[runner.name])
        elif failed:
            detail = "; ".join(f"{failure.variant}: {failure}" for failure in failed)
            yield RunnerStatus(runner.name, RunnerState.FAILED, detail)
        else:
            yield RunnerStatus(runner.name, RunnerState.RAN, runner.title)


def _notes(options: AllreduceOptions) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    crowded = [str(ranks) for ranks in options.ranks if ranks > cores]
    yield "Every rank of every runner stays on a core of its own where there are enough."
    if crowded:
        yield f"Not so with {', '.join(crowded)} ranks on {cores} cores: those are not pinned."
