"""Ranks of tfcollective: its C interface through ctypes (``ctypes``) or its Communicator (``numpy``)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tfcollective
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._control.identity import discover
from tfcollective._runtime.communicator import Communicator, NativeCommunicator, Sum
from tfcollective._runtime.native_library import abi, load
from tfcollective_bench.allreduce.measure import measure, numpy_dtype, parse_arguments, pin

__all__ = ["main"]


class _NumpyOperation:
    """``Communicator.allreduce`` into a given array."""

    def __init__(self, world: Communicator, count: int, dtype: str) -> None:
        self._world = world
        self.input = np.empty(count, numpy_dtype(dtype))
        self.output = np.empty_like(self.input)

    def write(self, value: float) -> None:
        """See Operation."""
        self.input.fill(value)

    def run(self) -> None:
        """See Operation."""
        self._world.allreduce(self.input, Sum, out=self.output)

    def extremes(self) -> tuple[float, float]:
        """See Operation."""
        return float(self.output.min()), float(self.output.max())


class _CtypesOperation(_NumpyOperation):
    """``tfc_call_run`` of a call that was prepared once."""

    def __init__(self, world: Any, count: int, dtype: str) -> None:
        super().__init__(world, count, dtype)
        span = abi.Span(self.input.ctypes.data, self.output.ctypes.data, count)
        shape = (ctypes.c_int64 * 1)(count)
        request = abi.Request(
            struct_size=ctypes.sizeof(abi.Request),
            collective=abi.Collective.ALLREDUCE,
            dtype=abi.DType[dtype.upper()],
            op=abi.Op.SUM,
            prescale=1.0,
            postscale=1.0,
            name=b"",
            spans=ctypes.pointer(span),
            num_spans=1,
            shape=shape,
            ndim=1,
        )
        self._error = abi.Error(struct_size=ctypes.sizeof(abi.Error))
        self._call = ctypes.c_void_p()
        load().call("tfc_call_prepare", world._handle, ctypes.byref(request), ctypes.byref(self._call))
        self._function = load().function("tfc_call_run")
        self._arguments = (self._call, span.input, span.output, ctypes.byref(self._error))

    def run(self) -> None:
        """See Operation."""
        if self._function(*self._arguments) != 0:
            sys.exit(self._error.message.decode())


class _Endpoint:
    def __init__(self, world: Communicator, kind: Callable[[Communicator, int, str], Any], empty_call: Any) -> None:
        self._world = world
        self._kind = kind
        self.rank = world.rank
        self.size = world.size
        self.empty_call = empty_call
        self.barrier = world.barrier

    def operation(self, count: int, dtype: str) -> Any:
        """See Endpoint."""
        return self._kind(self._world, count, dtype)

    def total(self, values: Sequence[float]) -> list[float]:
        """See Endpoint."""
        return [float(value) for value in self._world.allreduce(np.array(values, np.float64), Sum)]


def main(arguments: Sequence[str]) -> None:
    """``ctypes|numpy`` and the options of measure.py."""
    options = parse_arguments(arguments[1:])
    identity = discover(Settings.load(), environ_snapshot())
    pin(identity.task.index, options.pin)
    tfcollective.init()
    world = tfcollective.get_communicator()
    if options.require_shm and not world.info().uses_shared_memory:
        sys.exit("the ranks do not share memory")
    if arguments[0] == "ctypes":
        endpoint = _Endpoint(world, _CtypesOperation, load().function("tfc_abi_version"))
    else:
        alone = NativeCommunicator.alone()
        one = np.zeros(1, np.float32)
        endpoint = _Endpoint(world, _NumpyOperation, lambda: alone.allreduce(one, Sum, out=one))
    measure(endpoint, options)
    tfcollective.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
