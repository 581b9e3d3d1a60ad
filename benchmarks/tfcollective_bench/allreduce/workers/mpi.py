"""Ranks of MPI, through mpi4py's buffer interface. Started by mpirun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfcollective._base.settings import environ_snapshot
from tfcollective_bench.allreduce.measure import measure, numpy_dtype, parse_arguments, pin

__all__ = ["main"]


class _MpiOperation:
    """``Allreduce`` over given arrays."""

    def __init__(self, world: Any, count: int, dtype: str) -> None:
        self._allreduce = world.Allreduce
        self._input = np.empty(count, numpy_dtype(dtype))
        self._output = np.empty_like(self._input)

    def write(self, value: float) -> None:
        """See Operation."""
        self._input.fill(value)

    def run(self) -> None:
        """See Operation."""
        self._allreduce(self._input, self._output)

    def extremes(self) -> tuple[float, float]:
        """See Operation."""
        return float(self._output.min()), float(self._output.max())


class _Endpoint:
    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank = int(world.Get_rank())
        self.size = int(world.Get_size())
        self.barrier = world.Barrier
        self.empty_call = world.Get_rank

    def operation(self, count: int, dtype: str) -> _MpiOperation:
        """See Endpoint."""
        return _MpiOperation(self._world, count, dtype)

    def total(self, values: Sequence[float]) -> list[float]:
        """See Endpoint."""
        result = np.empty(len(values), np.float64)
        self._world.Allreduce(np.array(values, np.float64), result)
        return [float(value) for value in result]


def main(arguments: Sequence[str]) -> None:
    """The options of measure.py."""
    options = parse_arguments(arguments)
    pin(int(environ_snapshot()["OMPI_COMM_WORLD_LOCAL_RANK"]), options.pin)
    from mpi4py import MPI

    measure(_Endpoint(MPI.COMM_WORLD), options)


if __name__ == "__main__":
    main(sys.argv[1:])
