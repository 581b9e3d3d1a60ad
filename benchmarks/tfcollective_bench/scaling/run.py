"""Runs the scaling benchmark: worlds and coordinators in turns, lines of JSON to samples."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfcollective._base.codec import to_document
from tfcollective_bench import experiment
from tfcollective_bench.baselines import Baselines, find_baselines
from tfcollective_bench.experiment import run, statuses
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Watch
from tfcollective_bench.model import Cell, Report, Sample
from tfcollective_bench.scaling.options import ScalingOptions
from tfcollective_bench.scaling.runners import COORDINATOR, NODES, RUNNERS, Case, cases_of, chosen, hint_for, variant_of

__all__ = ["run_scaling", "samples_of"]


def run_scaling(options: ScalingOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.

    Raises:
        ConfigError: an unknown runner.
    """
    runners = chosen(options.runners)
    found = find_baselines(options.baselines, horovod_python=options.horovod_python)
    hints = {runner: hint for runner in runners if (hint := hint_for(runner, found))}
    cases = {case.name: case for runner in runners if runner not in hints for case in cases_of(runner, options)}
    hardware, started = probe_hardware(), time.time()
    measured = run(
        [_experiment_case(case, found, options) for case in cases.values()],
        lambda name, record: samples_of(cases[name], options, record.round, record.content),
        rounds=options.rounds,
        watch=watch,
    )
    return Report(
        title="Scaling benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=probe_versions({"horovod": found.horovod_python} if found.horovod_python else {}),
        settings=to_document(options),
        samples=tuple(measured.samples),
        statuses=tuple(statuses({runner: RUNNERS[runner] for runner in runners}, hints, measured)),
        started=started,
        finished=time.time(),
        notes=tuple(_notes(options)),
    )


def _experiment_case(case: Case, found: Baselines, options: ScalingOptions) -> experiment.Case:
    """A case as the experiment takes it: all are on this host."""
    return experiment.Case(case.name, case.runner, lambda _testbed: variant_of(case, found, options))


def samples_of(case: Case, options: ScalingOptions, number: int, content: Mapping[str, Any]) -> Iterator[Sample]:
    """The samples of one line: what steps.py, joining.py or nodes.py prints."""
    if case.runner == COORDINATOR:
        agents: dict[str, Cell] = {"agents": case.count}
        yield Sample(case.runner, agents, "join", "s", (content["seconds"],), number)
        yield Sample(case.runner, agents, "wait", "s", (content["median_wait"],), number)
        yield Sample(case.runner, agents, "cpu", "s", (content["server_cpu"],), number)
        for state, size in content["server_bytes"].items():
            yield Sample(case.runner, {**agents, "state": state}, "memory", "bytes", (float(size),), number)
        return
    if case.runner == NODES:
        nodes: dict[str, Cell] = {"nodes": case.count, "ranks": content["ranks"]}
        for metric, unit in (
            ("arrived", "s"),
            ("joined", "s"),
            ("joining", "s"),
            ("load", "cores"),
            ("simulator", "cores"),
            ("requests", "1/s"),
            ("memory", "bytes"),
        ):
            yield Sample(case.runner, nodes, metric, unit, (float(content[metric]),), number)
        for name, seconds in content["beat"].items():
            yield Sample(case.runner, {**nodes, "percentile": name}, "beat", "s", (seconds,), number)
        return
    row: dict[str, Cell] = {
        "ranks": case.count,
        "tensors": content["tensors"],
        "total_bytes": options.total_bytes,
        "link": "loopback",
    }
    yield Sample(case.runner, row, "step", "s", tuple(content["times"]), number)
    yield Sample(case.runner, row, "local", "s", tuple(content["local"]), number)
    yield Sample(case.runner, row, "cpu", "s", (content["cpu"],), number)


def _notes(options: ScalingOptions) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    crowded = [str(ranks) for ranks in options.ranks if ranks > cores]
    if crowded:
        yield f"{', '.join(crowded)} ranks share {cores} cores: their steps cost more for want of cores alone."
    yield "The agents are threads of this machine and compete with the coordinator for its cores."
