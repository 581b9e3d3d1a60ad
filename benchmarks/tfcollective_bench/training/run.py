"""Runs the training benchmark: jobs in turns, one line of JSON each to samples."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tfcollective
import tfcollective_bench
from tfcollective.clock import Deadline
from tfcollective.errors import LaunchError, UnsupportedError
from tfcollective.settings import environ_snapshot
from tfcollective_bench import testbed
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Event, Failure, Record, Variant, Watch, interleave
from tfcollective_bench.model import Cell, Report, RunnerState, RunnerStatus, Sample, Versions
from tfcollective_bench.ranks import working_folder
from tfcollective_bench.training.environments import Environment, find_environments, missing
from tfcollective_bench.training.job_plan import Site
from tfcollective_bench.training.options import LOOPBACK, TrainingOptions
from tfcollective_bench.training.runners import RUNNERS, Job, Runner, chosen, hosts_needed, jobs, timeline_jobs

__all__ = ["run_training", "samples_of"]

_JOB = "tfcollective_bench.training.job"


def run_training(options: TrainingOptions, command: Sequence[str], watch: Watch) -> Report:
    """Measures; returns when all rounds are over.

    Args:
        command: as typed, for the report.
        watch: given the number of turns, opens something that is told every event.

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
    found = _measure(planned, options, watch)
    if found.refused and not found.samples and not found.failures:
        raise UnsupportedError(f"{'; '.join(found.refused.values())} (the link {LOOPBACK} needs neither)")
    return Report(
        title="Training benchmark",
        command=tuple(command),
        hardware=hardware,
        versions=_versions(environments),
        settings=options.to_json(),
        samples=tuple(found.samples),
        statuses=(*_statuses(runners, lacking, found.failures, planned), *_links(found.refused)),
        started=started,
        finished=time.time(),
        notes=tuple(_notes(options, len(cores))),
        attachments={"timelines": found.timelines} if found.timelines else {},
    )


@dataclass
class _Found:
    """What a run gathers: samples, failures, why a link could not be had, and steps of ours by scene."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    timelines: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, event: Event, of_link: Mapping[str, Job]) -> None:
        """Keeps what an event tells."""
        if isinstance(event, Failure):
            self.failures.append(event)
        elif isinstance(event, Record):
            job = of_link[event.variant]
            if job.case.timeline:
                scene = {"model": job.case.model, "ranks": job.processes, "link": job.link, "runner": job.runner}
                self.timelines.append({**scene, "timeline": event.content["timeline"]})
            else:
                self.samples.extend(samples_of(job, event.round, event.content))


def _measure(planned: Sequence[Job], options: TrainingOptions, watch: Watch) -> _Found:
    found = _Found()
    recorded = list(timeline_jobs(planned)) if options.timeline else []
    turns = len(planned) * options.rounds + len(recorded)
    until = Deadline.after(options.budget_s) if options.budget_s else None
    with tempfile.TemporaryDirectory(prefix="tfcollective-bench-") as scratch, watch(turns) as tell:
        for link in dict.fromkeys(options.links):
            of_link = {job.name: job for job in (*planned, *recorded) if job.link == link}
            if not of_link:
                continue
            try:
                with _site(link, list(of_link.values()), scratch) as site:
                    variants = {name: _variant(job, site, options, scratch) for name, job in of_link.items()}
                    for event in _turns(variants, of_link, options.rounds, until):
                        tell(event)
                        found.take(event, of_link)
            except LaunchError as error:
                found.refused[link] = f"{link}: {error}"
    return found


def _turns(
    variants: Mapping[str, Variant], of_link: Mapping[str, Job], rounds: int, until: Deadline | None
) -> Iterator[Event]:
    """What is measured, in turns; then what only records."""
    for timeline, times in ((False, rounds), (True, 1)):
        chosen_ones = [variant for name, variant in variants.items() if of_link[name].case.timeline is timeline]
        with closing(interleave(chosen_ones, times, until=until)) as events:
            yield from events


@contextmanager
def _site(link: str, of_link: Sequence[Job], scratch: str) -> Iterator[Site]:
    """The place for the jobs of a link; a test bed exists while it is open. LaunchError when it cannot be had."""
    if link == LOOPBACK:
        yield Site(results=scratch)
        return
    with testbed.opened(testbed.NetnsTestbed(hosts_needed(of_link), link)) as bed:
        yield Site(
            results=scratch,
            hosts=bed.addresses,
            namespaces=bed.namespaces,
            interfaces=bed.interfaces,
            gateway=bed.gateway,
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
        argv=(sys.executable, "-m", _JOB, job.case.to_text(), site.to_text()),
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
    """How many samples went into the model at the start and after each measured epoch, the dropped one included. A
    process that is not connected trains on its own alone."""
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


def _statuses(
    runners: Sequence[Runner], lacking: Mapping[str, str], failures: Sequence[Failure], planned: Sequence[Job]
) -> Iterator[RunnerStatus]:
    runner_of = {job.name: job.runner for job in (*planned, *timeline_jobs(planned))}
    for runner in runners:
        failed = [failure for failure in failures if runner_of[failure.variant] == runner.name]
        if runner.name in lacking:
            yield RunnerStatus(runner.name, RunnerState.MISSING, lacking[runner.name])
        elif failed:
            detail = "; ".join(f"{failure.variant}: {failure}" for failure in failed)
            yield RunnerStatus(runner.name, RunnerState.FAILED, detail)
        else:
            yield RunnerStatus(runner.name, RunnerState.RAN, RUNNERS[runner.name].title)


def _links(refused: Mapping[str, str]) -> Iterator[RunnerStatus]:
    for link, reason in refused.items():
        yield RunnerStatus(f"link {link}", RunnerState.MISSING, reason.partition(": ")[2])


def _notes(options: TrainingOptions, cores: int) -> Iterator[str]:
    yield "Every training process of every runner has the same threads, batch, data and optimizer."
    for processes in dict.fromkeys(options.processes):
        pinned = "stays on its own share of them" if cores >= processes else "runs where the kernel puts it"
        yield f"{processes} processes on {cores} cores: each {pinned}."
    if any(link != LOOPBACK for link in options.links):
        yield "The hosts of shaped links are network namespaces of this machine and share its cores."
