"""Runs the elastic benchmark: jobs that grow by a rank and lose one, in turns; lines of JSON to samples."""

from __future__ import annotations

import ipaddress
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcollective._base.codec import to_document
from tfcollective._base.machine.network import interface_addresses
from tfcollective_bench.baselines import find_baselines
from tfcollective_bench.elastic.options import ElasticOptions
from tfcollective_bench.elastic.runners import RUNNERS, chosen, hint_for, variant_of
from tfcollective_bench.experiment import Case, run, statuses
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Watch
from tfcollective_bench.model import Report, Sample

__all__ = ["METRICS", "host_names", "run_elastic", "samples_of"]

#: What a turn measures -> what it says, for people.
METRICS: Mapping[str, str] = {
    "survivors": "SIGKILL to the survivors' next step",
    "replacement": "SIGKILL to the replacement's first step",
    "join": "no step while it joined",
    "grow": "a new slot to the larger world's first step",
    "pause": "no step while it grew",
}


def run_elastic(options: ElasticOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.

    Raises:
        ConfigError: an unknown runner.
    """
    runners = chosen(options.runners)
    found = find_baselines(options.baselines, horovod_python=options.horovod_python)
    names = host_names(interface_addresses())
    hints = {runner: hint for runner in runners if (hint := hint_for(runner, found, options.ranks, names))}
    hardware, started = probe_hardware(), time.time()
    with tempfile.TemporaryDirectory(prefix="tfc-elastic-") as folder:
        measurable = [name for name in runners if name not in hints]
        variants = {name: variant_of(name, found, options, names, Path(folder)) for name in measurable}
        measured = run(
            [Case(name, name, lambda _testbed, made=made: made) for name, made in variants.items()],  # type: ignore[misc]
            lambda name, record: samples_of(name, options, record.round, record.content),
            rounds=options.rounds,
            watch=watch,
        )
    return Report(
        title="Elastic benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=probe_versions({"horovod": found.horovod_python} if found.horovod_python else {}),
        settings=to_document(options),
        samples=tuple(measured.samples),
        statuses=tuple(statuses({runner: RUNNERS[runner] for runner in runners}, hints, measured)),
        started=started,
        finished=time.time(),
        notes=("In each round another rank is killed: rank 0 in the first one, then rank 1, and so on.",),
    )


def samples_of(runner: str, options: ElasticOptions, number: int, content: Mapping[str, Any]) -> Iterator[Sample]:
    """The samples of one line: what trial.py prints."""
    row = {"ranks": options.ranks, "megabytes": options.megabytes, "victim": int(content["victim"])}
    for metric in METRICS.keys() & content.keys():
        yield Sample(runner, row, metric, "s", (float(content[metric]),), number)


def host_names(addresses: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names of this host that count as different hosts: its own, and its IPv4 addresses by interface."""
    found = [ipaddress.ip_address(one) for listed in addresses.values() for one in listed]
    outside = sorted(str(one) for one in found if one.version == 4 and not one.is_loopback)
    return ("localhost", "127.0.0.1", *outside)
