"""The arithmetic that the native engine does beside the bare reduction, on numpy arrays: pure.

Engines reduce few types. Others travel as a wider one that they know, and come back; 16-bit floats are combined in
float32 and rounded once. Scaling and averaging of integers round toward zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import Average, Max, Min, Op, Product, Sum

Array = npt.NDArray[Any]

_WIRE = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
    "bool": "uint8",
}


def cut(array: Array, counts: Sequence[int]) -> list[bytes]:
    """The bytes of pieces of so many rows, one after the other."""
    ends = itertools.accumulate(counts)
    return [array[end - count : end].tobytes() for count, end in zip(counts, ends, strict=True)]


def wire_type(dtype: str, reduced: Container[str] = ()) -> str:
    """The type as which `dtype` travels through an engine that reduces the types `reduced` in addition to the usual."""
    return dtype if dtype in reduced else _WIRE.get(dtype, dtype)


def wire_op(op: Op, dtype: str) -> Op:
    """The reduction that the engine does for `op`. UnsupportedError where there is none."""
    if dtype == "bool":
        if op == Average:
            raise UnsupportedError("bool values cannot be scaled or averaged")
        return {Sum: Max, Product: Min}.get(op, op)
    if dtype == "uint64" and op in (Min, Max):
        raise UnsupportedError("this engine knows no Min and Max of uint64: use the native engine")
    return Sum if op == Average else op


def on_the_wire(array: Array, prescale: float, op: Op = Sum) -> Array:
    """`array` times `prescale`, in the type in which it travels: the sum of an average does not wrap below 64 bits."""
    if prescale != 1.0:
        if array.dtype.name == "bool":
            raise UnsupportedError("bool values cannot be scaled or averaged")
        array = _scaled(array, prescale)
    wire = wire_type(array.dtype.name)
    if op == Average and array.dtype.kind in "iu" and array.dtype.itemsize < 8:
        wire = "int64"
    return np.ascontiguousarray(array.astype(wire))


def finished(reduced: Array, dtype: np.dtype[Any], postscale: float, divisor: int) -> Array:
    """Returns what came off the wire as `dtype`, times `postscale`, divided by `divisor`."""
    floating = _is_floating(dtype)
    result = reduced if floating or divisor != 1 else reduced.astype(dtype)  # integers wrap where the type does
    if postscale != 1.0:
        if dtype.name == "bool":
            raise UnsupportedError("bool values cannot be scaled or averaged")
        result = _scaled(result, postscale)
    if divisor != 1:
        result = result / divisor if floating else _within(_divided(result, divisor), dtype)
    return result.astype(dtype)


def _within(array: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    inside: Array = array if array.dtype == dtype else np.clip(array, limits.min, limits.max)
    return inside


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return str(dtype.name).startswith(("float", "bfloat"))


def _scaled(array: Array, factor: float) -> Array:
    if _is_floating(array.dtype):
        wide = array.astype(wire_type(array.dtype.name))
        multiplied: Array = wide * wide.dtype.type(factor)
        return multiplied
    limits = np.iinfo(array.dtype)
    product = np.trunc(array.astype(np.float64) * factor)
    inside = (product < float(limits.max)) & (product > float(limits.min))
    bound = np.where(product > 0, limits.max, limits.min).astype(array.dtype)
    return np.where(inside, np.where(inside, product, 0).astype(array.dtype), bound)


def _divided(array: Array, divisor: int) -> Array:
    by = array.dtype.type(divisor)
    quotient: Array = np.where(array < 0, -(-array // by), array // by).astype(array.dtype)
    return quotient
