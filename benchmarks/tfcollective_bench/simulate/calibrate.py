"""Fits the parameters of the model to measured worlds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tfcollective_bench.model import Sample
from tfcollective_bench.simulate.engine import duration
from tfcollective_bench.simulate.network import Network
from tfcollective_bench.simulate.steps import allreduce_steps
from tfcollective_bench.statistics import Summary, summarise

__all__ = ["OURS", "Measured", "by_link", "calibrate", "fitted", "measure_gamma", "measured_worlds", "predict"]

#: Runners whose figures are those of the C interface.
OURS = ("c", "ctypes")
# Within so much of what was measured the link explains it.
_EXPLAINED = 1.2
_HALVINGS = 40
_MOST_ALPHA_S = 1.0
_MOST_COPY_S = 1e-6
_GAMMA_BYTES = 256 << 10
_GAMMA_CALLS = 200


@dataclass(frozen=True)
class Measured:
    """A measured world and size: hosts on one machine, joined by a link."""

    link: str
    hosts: int
    bytes: int
    latency: Summary


def predict(ranks: int, nbytes: int, network: Network) -> float:
    """Seconds that an all-reduce of float32 takes."""
    return duration(ranks, lambda rank: allreduce_steps(ranks, rank, nbytes), network)


def measured_worlds(samples: Sequence[Sample]) -> list[Measured]:
    """Returns the measurements of all-reduce benchmarks in namespaces; hot caches, the C interface."""
    groups: dict[tuple[str, int, int], list[float]] = {}
    for sample in samples:
        row = sample.row
        if sample.metric == "latency" and sample.runner in OURS and row.get("link") and row.get("cache") == "hot":
            key = (str(row["link"]), int(row["ranks"]), int(row["bytes"]))
            groups.setdefault(key, []).extend(sample.values)
    return [Measured(*key, summarise(values)) for key, values in sorted(groups.items())]


def calibrate(network: Network, measured: Sequence[Measured]) -> Network:
    """The network with `alpha` and `copy` such that the smallest of the measured worlds comes out: `alpha` at its
    smallest size, `copy` at its largest. The other worlds and sizes are for the check.

    Where the link explains the largest size well enough it is what limits, and says nothing of the processors: `copy`
    is then 0.
    """
    small, large = fitted(measured)
    network = replace(network, copy=0.0)
    network = replace(network, alpha=_fit(small, _MOST_ALPHA_S, lambda value: replace(network, alpha=value)))
    if large.latency.median <= _EXPLAINED * predict(large.hosts, large.bytes, network):
        return network
    return replace(network, copy=_fit(large, _MOST_COPY_S, lambda value: replace(network, copy=value)))


def fitted(measured: Sequence[Measured]) -> tuple[Measured, Measured]:
    """The two figures of a link that the model is fitted to: the smallest world's smallest and largest size."""
    fewest = min(one.hosts for one in measured)
    rows = sorted((one for one in measured if one.hosts == fewest), key=lambda one: one.bytes)
    return rows[0], rows[-1]


def _fit(wanted: Measured, most: float, network_with: Callable[[float], Network]) -> float:
    """The value, between 0 and `most`, with which the prediction is what was measured; it grows with the value."""
    steps = {rank: allreduce_steps(wanted.hosts, rank, wanted.bytes) for rank in range(wanted.hosts)}

    def too_long(value: float) -> bool:
        return duration(wanted.hosts, steps.__getitem__, network_with(value)) > wanted.latency.median

    if too_long(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_long(middle) else (middle, high)
    return low


def measure_gamma() -> float:
    """Seconds a byte of adding arrays of float32 that fit a core's cache takes on this machine, now."""
    import numpy as np

    mine, theirs = np.ones((2, _GAMMA_BYTES // 4), np.float32)
    times = []
    for _ in range(_GAMMA_CALLS):
        begin = time.perf_counter()
        np.add(mine, theirs, out=mine)
        times.append(time.perf_counter() - begin)
    return median(times) / _GAMMA_BYTES


def by_link(measured: Sequence[Measured]) -> Mapping[str, list[Measured]]:
    """The measured worlds of every link."""
    found: dict[str, list[Measured]] = {}
    for one in measured:
        found.setdefault(one.link, []).append(one)
    return found
