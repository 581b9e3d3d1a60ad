"""Runs the training benchmark: jobs in turns, one line of JSON each to samples."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tfcollective
import tfcollective_bench
from tfcollective._base.codec import encode, to_document
from tfcollective._base.settings import environ_snapshot
from tfcollective_bench import experiment
from tfcollective_bench.experiment import run, statuses
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Record, Variant, Watch
from tfcollective_bench.model import Cell, Report, Sample, Versions
from tfcollective_bench.ranks import working_folder
from tfcollective_bench.testbed import NetnsTestbed
from tfcollective_bench.training.environments import Environment, find_environments, missing
from tfcollective_bench.training.job_plan import Site
from tfcollective_bench.training.options import LOOPBACK, TrainingOptions
from tfcollective_bench.training.runners import Job, chosen, hosts_needed, jobs, timeline_jobs

__all__ = ["run_training", "samples_of"]

_JOB = "tfcollective_bench.training.job"


def run_training(options: TrainingOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.

    Raises:
        ConfigError: an unknown runner.
        UnsupportedError: no link can be had: network namespaces need root.
    """
    runners = chosen(options.runners)
    environments = find_environments(options)
    hardware = probe_hardware()
    lacking = {runner.name: hint for runner in runners if (hint := missing(runner, environments))}
    there = [runner for runner in runners if runner.name not in lacking]
    pythons = {label: environment.python for label, environment in environments.items()}
    cores = sorted(os.sched_getaffinity(0))
    planned = list(jobs(there, pythons, options, cores))
    started = time.time()
    recorded = list(timeline_jobs(planned)) if options.timeline else []
    by_name = {job.name: job for job in (*planned, *recorded)}
    timelines: list[Mapping[str, Any]] = []

    def to_samples(name: str, record: Record) -> Iterable[Sample]:
        job = by_name[name]
        if not job.case.timeline:
            return samples_of(job, record.round, record.content)
        scene = {"model": job.case.model, "ranks": job.processes, "link": job.link, "runner": job.runner}
        timelines.append({**scene, "timeline": record.content["timeline"]})
        return ()

    with tempfile.TemporaryDirectory(prefix="tfcollective-bench-") as scratch:
        measured = run(
            [_experiment_case(job, list(by_name.values()), options, scratch) for job in by_name.values()],
            to_samples,
            rounds=options.rounds,
            watch=watch,
            budget_s=options.budget_s,
        )
    return Report(
        title="Training benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=_versions(environments),
        settings=to_document(options),
        samples=tuple(measured.samples),
        statuses=tuple(statuses({runner.name: runner.title for runner in runners}, lacking, measured)),
        started=started,
        finished=time.time(),
        notes=tuple(_notes(options, len(cores))),
        attachments={"timelines": timelines} if timelines else {},
    )


def _experiment_case(job: Job, all_jobs: Sequence[Job], options: TrainingOptions, scratch: str) -> experiment.Case:
    """The job as the experiment takes it; all jobs of a link share a test bed."""
    hosts = 0 if job.link == LOOPBACK else hosts_needed([one for one in all_jobs if one.link == job.link])
    return experiment.Case(
        job.name,
        job.runner,
        lambda testbed: _variant(job, _site(testbed, scratch), options, scratch),
        (job.link, hosts),
        1 if job.case.timeline else None,
    )


def _site(testbed: NetnsTestbed | None, scratch: str) -> Site:
    if testbed is None:
        return Site(results=scratch)
    return Site(
        results=scratch,
        hosts=testbed.addresses,
        namespaces=testbed.namespaces,
        interfaces=testbed.interfaces,
        gateway=testbed.gateway,
    )


def _variant(job: Job, site: Site, options: TrainingOptions, scratch: str) -> Variant:
    """The job's command. All environments get these very packages, and nothing else from here: a folder that holds only
    links to them goes before what they have installed."""
    folder = Path(scratch) / "packages"
    folder.mkdir(exist_ok=True)
    for package in (*tfcollective.__path__, *tfcollective_bench.__path__):
        link = folder / Path(package).name
        if not link.exists():
            link.symlink_to(Path(package).resolve())
    inherited = environ_snapshot().get("PYTHONPATH")
    return Variant(
        name=job.name,
        argv=(sys.executable, "-m", _JOB, encode(job.case).decode(), encode(site).decode()),
        deadline_s=options.deadline_s,
        env={"PYTHONPATH": f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)},
        cwd=working_folder(),
    )


def samples_of(job: Job, number: int, content: Mapping[str, Any]) -> Iterator[Sample]:
    """The samples of one job's line: what job.py prints."""
    row: dict[str, Cell] = {"model": job.case.model, "ranks": job.processes, "link": job.link, "view": job.view}
    if job.case.servers:
        row.update(servers=job.case.servers, steps_per_execution=job.case.steps_per_execution)
    results = content["results"]
    epochs = list(zip(*(result["epochs"] for result in results), strict=True))
    rates = tuple(_rate(epoch, together=job.case.strategy != "unconnected") for epoch in epochs)
    trained = [sum(one["samples"] for one in epoch) for epoch in epochs]
    # The first process's model: those of one world are equal, and those of unconnected ones have the same fate.
    losses = tuple(one["loss"] for one in (epoch[0] for epoch in epochs))
    seconds = tuple(max(one["seconds"] for one in epoch) for epoch in epochs)
    reading, total = content["reading"], sum(trained)
    yield Sample(job.runner, row, "throughput", "samples/s", rates, number)
    yield Sample(job.runner, row, "loss", "nats", (results[0]["first_loss"], *losses), number)
    yield Sample(job.runner, row, "trained", "samples", tuple(map(float, _loss_samples(job, trained))), number)
    yield Sample(job.runner, row, "seconds", "s", seconds, number)
    yield Sample(job.runner, row, "wire", "bytes/sample", (reading["sent_bytes"] / total,), number)
    yield Sample(job.runner, row, "cpu", "s/sample", (reading["cpu_seconds"] / total,), number)


def _rate(epoch: Sequence[Mapping[str, float]], *, together: bool) -> float:
    """Samples a second of all processes. Those that train together are as fast as the slowest."""
    if together:
        return sum(one["samples"] for one in epoch) / max(one["seconds"] for one in epoch)
    return sum(one["samples"] / one["seconds"] for one in epoch)


def _loss_samples(job: Job, trained: Sequence[float]) -> Iterator[float]:
    """Yields how many samples went into the model at the start and after each measured epoch, the dropped one included.
    A process that is not connected trains on its own alone."""
    share = job.case.size if job.case.strategy == "unconnected" else 1
    yield 0.0
    for epoch in range(len(trained)):
        yield sum(trained[: epoch + 1]) / share + trained[0] / share


def _versions(environments: Mapping[str, Environment]) -> Versions:
    found = dict(probe_versions().packages)
    for label, environment in environments.items():
        for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy", "horovod"):
            if name in environment.packages:
                found[f"{label}/{name}"] = environment.packages[name]
    return Versions(found)


def _notes(options: TrainingOptions, cores: int) -> Iterator[str]:
    yield "Every training process of every runner has the same threads, batch, data and optimizer."
    for processes in dict.fromkeys(options.processes):
        pinned = "stays on its own share of them" if cores >= processes else "runs where the kernel puts it"
        yield f"{processes} processes on {cores} cores: each {pinned}."
    if any(link != LOOPBACK for link in options.links):
        yield "The hosts of shaped links are network namespaces of this machine and share its cores."
