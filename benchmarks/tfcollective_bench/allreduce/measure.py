"""The timing loop that all runners in Python share. Needs numpy and the standard library only: it runs in external
environments.

Per iteration: new inputs are written, caches emptied if asked to, a barrier, the clock, the all-reduce, the clock, and
every element of the result is compared. An iteration's time is the mean over the ranks (as nccl-tests and the OSU
benchmarks report it). Processor time is that of a further loop without anything else inside.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfcollective_bench.allreduce.points import Point

__all__ = ["Endpoint", "Operation", "measure", "numpy_dtype", "parse_arguments", "pin"]

_WARM_UP = 5
_VALUES = 7
_OVERHEAD_CALLS = 2000
_CPU_CALLS = 100


class Operation(Protocol):
    """An all-reduce (sum) over buffers that live as long as it does."""

    def write(self, value: float) -> None:
        """Fills the input."""

    def run(self) -> None:
        """Runs it; the result is complete on return."""

    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest element of the result."""


class Endpoint(Protocol):
    """A rank of some library's world."""

    rank: int
    size: int

    def operation(self, count: int, dtype: str) -> Operation:
        """An all-reduce of so many elements."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over the ranks, of seconds."""

    def empty_call(self) -> None:
        """A call through the same layers that communicates nothing."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """``--dtype --flush --pin POINT...``; the same for all runners."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--flush", type=int, default=0, help="bytes to touch so that the caches are emptied")
    parser.add_argument("--pin", action="store_true", help="stay on one core, chosen by rank")
    parser.add_argument("--require-shm", action="store_true", help="fail if the ranks do not share memory")
    parser.add_argument("points", nargs="+", type=Point.parse)
    return parser.parse_args(arguments)


def pin(rank: int, wanted: bool) -> None:
    """Keeps this process on one core; before any library makes threads."""
    if wanted:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; bfloat16 needs the package that TensorFlow, too, takes it from."""
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401  # makes numpy know the name
    return np.dtype(name)


def measure(endpoint: Endpoint, options: argparse.Namespace) -> None:
    """Measures all points; rank 0 prints a line of JSON for each.

    Ends the process with a message when a result is wrong.
    """
    flush = np.zeros(options.flush // 8 + 1, np.int64)
    item = numpy_dtype(options.dtype).itemsize
    overhead = _overhead(endpoint)
    for point in options.points:
        operation = endpoint.operation(max(1, point.bytes // item), options.dtype)
        times = [
            _iteration(endpoint, operation, number, flush if point.cache == "cold" else None)
            for number in range(_WARM_UP + point.iterations)
        ][_WARM_UP:]
        cpu = _processor_time(endpoint, operation, min(point.iterations, _CPU_CALLS))
        *totals, cpu_total, overhead_total = endpoint.total([*times, cpu, overhead])
        if endpoint.rank == 0:
            record = {
                "cache": point.cache,
                "bytes": point.bytes,
                "times": [total / endpoint.size for total in totals],
                "cpu": cpu_total,
                "overhead": overhead_total / endpoint.size,
            }
            print(json.dumps(record), flush=True)


def _iteration(endpoint: Endpoint, operation: Operation, number: int, flush: Any) -> float:
    step = number % _VALUES
    operation.write(endpoint.rank + step)
    if flush is not None:
        flush += 1
    endpoint.barrier()
    begin = time.perf_counter_ns()
    operation.run()
    seconds = (time.perf_counter_ns() - begin) * 1e-9
    expected = endpoint.size * (endpoint.size - 1) / 2 + endpoint.size * step
    found = operation.extremes()
    if found != (expected, expected):
        sys.exit(f"wrong result on rank {endpoint.rank}: elements from {found[0]} to {found[1]}, not {expected}")
    return seconds


def _processor_time(endpoint: Endpoint, operation: Operation, calls: int) -> float:
    """Seconds of processor time, of all threads of this process, per call."""
    endpoint.barrier()
    begin = time.process_time()
    for _ in range(calls):
        operation.run()
    return (time.process_time() - begin) / calls


def _overhead(endpoint: Endpoint) -> float:
    """Seconds of a call that communicates nothing."""
    begin = time.perf_counter()
    for _ in range(_OVERHEAD_CALLS):
        endpoint.empty_call()
    return (time.perf_counter() - begin) / _OVERHEAD_CALLS
