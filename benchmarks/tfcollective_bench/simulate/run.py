"""Runs a simulation: takes the measurements, fits the model to them, predicts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfcollective._base.codec import to_document
from tfcollective._base.errors import LaunchError, UnsupportedError
from tfcollective_bench.allreduce.options import AllreduceOptions
from tfcollective_bench.allreduce.run import run_allreduce
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.interleave import Watch
from tfcollective_bench.model import Cell, Report, RunnerState, RunnerStatus, Sample
from tfcollective_bench.simulate.calibrate import (
    OURS,
    Measured,
    by_link,
    calibrate,
    measure_gamma,
    measured_worlds,
    predict,
)
from tfcollective_bench.simulate.network import Network, network_of
from tfcollective_bench.simulate.options import SimulateOptions
from tfcollective_bench.simulate.steps import load_simulator

__all__ = ["PREDICTED", "run_simulation"]

#: The runner's name of predictions.
PREDICTED = "simulated"
_USUAL_ALPHA_S = 50e-6
_USUAL_COPY_S = 1 / 4e9
_ITERATIONS = 50


def run_simulation(
    options: SimulateOptions, given: Sequence[Report], command: Sequence[str], watch: Watch, say: Callable[[str], None]
) -> Report:
    """Predicts; measures first, if hosts are asked for and can be had here.

    Args:
        given: reports of ``bench allreduce --link``: the model is fitted to them and checked against them, too.
        command: as typed, for the report.
        watch: given the number of turns, opens something that takes every event.
        say: takes what is done, for people.

    Raises:
        ConfigError: the simulator's library is not here.
    """
    load_simulator()  # before minutes of measuring
    started, hardware = time.time(), probe_hardware()
    reports, refused = _measure(options, watch, say)
    samples = [sample for report in (*given, *reports) for sample in report.samples]
    measured = by_link(measured_worlds(samples))
    gamma = measure_gamma()
    networks = {link: _network(link, options, gamma, measured.get(link, ())) for link in options.links}
    say(f"predicting {len(options.ranks)} worlds, {len(options.sizes)} sizes, {len(options.links)} links")
    predicted = [*_predictions(options, networks), *_checks(networks, measured)]
    known = [sample for sample in samples if _is_measured(sample, options.links)]
    return Report(
        title="Simulation of all-reduce",
        command=tuple(command),
        hardware=hardware,
        versions=probe_versions(),
        settings={
            **to_document(options),
            "networks": to_document(networks),
        },
        samples=(*predicted, *known),
        statuses=tuple(_statuses(options, measured, refused)),
        started=started,
        finished=time.time(),
        notes=tuple(_notes(measured)),
    )


def _measure(options: SimulateOptions, watch: Watch, say: Callable[[str], None]) -> tuple[list[Report], dict[str, str]]:
    """The reports of the measured worlds, and why some could not be measured."""
    found: list[Report] = []
    refused: dict[str, str] = {}
    sizes = tuple(sorted({size for size in options.sizes if size <= 64 << 20}))
    for link in options.links if options.hosts and sizes else ():
        for hosts in options.hosts:
            asked = AllreduceOptions(
                ranks=(hosts,),
                sizes=sizes,
                runners=("ctypes",),
                rounds=options.rounds,
                iterations=_ITERATIONS,
                caches=("hot",),
                deadline_s=options.deadline_s,
                links=(link,),
            )
            try:
                say(f"measuring {hosts} hosts at {link}")
                report = run_allreduce(asked, (), watch)
            except (LaunchError, UnsupportedError) as error:
                refused[link] = str(error)
                say(f"not measured: {error}")
                break
            found.append(report)
            failed = [status.detail for status in report.statuses if status.state is RunnerState.FAILED]
            if failed:
                refused[link] = "; ".join(failed)
    return found, refused


def _network(link: str, options: SimulateOptions, gamma: float, measured: Sequence[Measured]) -> Network:
    """Returns the network's parameters: those of the options, else those measured."""
    network = network_of(link, _USUAL_ALPHA_S, gamma, _USUAL_COPY_S, shaped=bool(measured))
    if measured:
        network = calibrate(network, measured)
    alpha, copy = options.alpha or network.alpha, options.copy or network.copy
    return Network(alpha, network.beta, network.gamma, copy, network.burst)


def _predictions(options: SimulateOptions, networks: Mapping[str, Network]) -> Iterator[Sample]:
    """Hosts that are machines of their own, on links without a token bucket's burst."""
    for link, network in networks.items():
        apart = Network(network.alpha, network.beta, network.gamma, network.copy)
        for ranks in options.ranks:
            for size in options.sizes:
                yield _sample(link, ranks, size, "apart", predict(ranks, size, apart))


def _checks(networks: Mapping[str, Network], measured: Mapping[str, Sequence[Measured]]) -> Iterator[Sample]:
    """The measured worlds, predicted: their hosts share the cores of this machine."""
    cores = len(os.sched_getaffinity(0))
    for link, network in networks.items():
        for one in measured.get(link, ()):
            shared = network.on_shared_cores(one.hosts, cores)
            yield _sample(link, one.hosts, one.bytes, "shared", predict(one.hosts, one.bytes, shared))


def _sample(link: str, ranks: int, size: int, cores: str, seconds: float) -> Sample:
    row: dict[str, Cell] = {"bytes": size, "ranks": ranks, "link": link, "cores": cores}
    return Sample(PREDICTED, row, "latency", "s", (seconds,), 0)


def _is_measured(sample: Sample, links: Sequence[str]) -> bool:
    return sample.metric == "latency" and sample.row.get("link") in links and sample.runner in OURS


def _statuses(
    options: SimulateOptions, measured: Mapping[str, Sequence[Measured]], refused: Mapping[str, str]
) -> Iterator[RunnerStatus]:
    yield RunnerStatus(PREDICTED, RunnerState.RAN, "the steps of tfcollective's ranks over a model of the network")
    for link in options.links:
        if link in refused:
            yield RunnerStatus(f"hosts at {link}", RunnerState.FAILED, refused[link])
        elif link in measured:
            yield RunnerStatus(f"hosts at {link}", RunnerState.RAN, "measured in network namespaces")
        else:
            detail = "not measured: --hosts 2,4,8 (needs root), or a report of bench allreduce --link"
            yield RunnerStatus(f"hosts at {link}", RunnerState.MISSING, detail)


def _notes(measured: Mapping[str, Sequence[Measured]]) -> Iterator[str]:
    yield "gamma was measured on this machine while the simulation ran."
    if measured:
        yield "Measured hosts are network namespaces and share the cores of this machine."
