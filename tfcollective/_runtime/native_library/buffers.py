"""numpy arrays as the native library wants them. Imported only when an array is used, so that importing
tfcollective does not import numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.native_library import abi
from tfcollective._runtime.native_library.calls import PreparedCalls

Array = npt.NDArray[Any]

_DTYPES: dict[str, abi.DType] = {member.name.lower(): member for member in abi.DType}
_KNOWN: dict[np.dtype[Any], abi.DType] = {}  # cached: numpy makes a new name at each request
_byte_at: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def dtype_of(array: Array, argument: str) -> abi.DType:
    """The native type of an array's elements.

    Raises:
        UnsupportedError: no such native type; names the argument and the types that there are.
    """
    found = _KNOWN.get(array.dtype)
    if found is not None:
        return found
    found = _DTYPES.get(array.dtype.name)
    if found is None:
        raise UnsupportedError(f"{argument}: dtype {array.dtype} is not supported; use one of {', '.join(_DTYPES)}")
    _KNOWN[array.dtype] = found
    return found


def address(array: Array) -> int:
    """The address of the array's memory."""
    try:
        return ctypes.addressof(_byte_at(array))  # several times as fast as numpy's own way
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that buffers do not know
        return int(array.ctypes.data)


def as_input(value: npt.ArrayLike, argument: str) -> Array:
    """`value` as a C-contiguous array in native byte order; copied only when it is not one already.

    Raises:
        InvalidArgumentError: a masked array.
        UnsupportedError: of a dtype that no collective takes.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(f"{argument}: a masked array, whose mask would be lost: pass array.filled(...)")
    array = np.asarray(value, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype_of(array, argument)
    return array


def as_rows(value: npt.ArrayLike, needed_by: str | None = None) -> Array:
    """Converts as :func:`as_input` does; a scalar becomes one row, or an InvalidArgumentError if rows are needed."""
    array = as_input(value, "array")
    if array.ndim == 0 and needed_by is not None:
        raise InvalidArgumentError(f"array: {needed_by} needs at least one dimension")
    return array.reshape(1) if array.ndim == 0 else array


def check_output(out: Array, like: Array, shape: Sequence[int]) -> Array:
    """`out` if results can be written straight into it.

    Raises:
        InvalidArgumentError: another shape or dtype than the result, not contiguous, or read-only.
    """
    if not isinstance(out, np.ndarray):
        raise InvalidArgumentError(f"out: expected a numpy array, got {type(out).__name__}")
    if out.dtype != like.dtype or out.shape != tuple(shape):
        raise InvalidArgumentError(
            f"out: expected dtype {like.dtype} and shape {tuple(shape)}, got {out.dtype} and {out.shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgumentError("out: must be C-contiguous and writeable")
    return out


def empty(shape: Sequence[int], like: Array) -> Array:
    """An array of this shape and of the dtype of `like`, its contents undefined."""
    return np.empty(tuple(shape), like.dtype)


def result_like(source: Array, out: Array | None) -> Array:
    """Returns the array for a result of the shape and dtype of `source`: `out` if it fits, else a new one."""
    return np.empty_like(source) if out is None else check_output(out, source, source.shape)


def apart(source: Array, out: Array) -> Array:
    """`source`, copied if it overlaps `out` without being the same memory (in place is fine, overlap is not)."""
    same = address(source) == address(out) and source.nbytes == out.nbytes
    return source if same or not np.may_share_memory(source, out) else source.copy()


def span(source: Array | None, out: Array | None, count: int) -> abi.Span:
    """Returns a native span over two arrays."""
    return abi.Span(
        input=None if source is None else address(source),
        output=None if out is None else address(out),
        count=count,
    )


def int64s(values: Sequence[int]) -> Any:
    """A C array of int64."""
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def as_splits(splits: npt.ArrayLike | None, size: int, rows: int) -> list[int] | None:
    """Checked all-to-all splits: one count a rank, none negative, `rows` in all.

    Raises:
        InvalidArgumentError: anything else.
    """
    if splits is None:
        if rows % size:
            raise InvalidArgumentError(f"splits: needed, as {rows} rows cannot be divided by {size} ranks")
        return None
    values = [int(v) for v in np.asarray(splits).reshape(-1)]
    if len(values) != size or any(v < 0 for v in values) or sum(values) != rows:
        raise InvalidArgumentError(
            f"splits: expected {size} counts that are not negative and sum to {rows} rows, got {values}"
        )
    return values


class RepeatedAllReduces:
    """The all-reduces of a communicator that were made before, on other arrays."""

    def __init__(self, calls: PreparedCalls) -> None:
        self._take = calls.take
        self._keep = calls.keep

    def repeat(self, array: object, out: object, settings: tuple[object, ...]) -> Array | None:
        """Runs a call that was made before with these `settings` and arrays of this dtype and shape.

        Returns:
            The result; None, and nothing has happened, if there was no such call or the arrays need a closer look.
        """
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            return None
        dtype, shape = array.dtype, array.shape
        if out is None:
            result = np.empty(shape, dtype)
        elif type(out) is np.ndarray and out.dtype == dtype and out.shape == shape and out.flags.carray:
            result = out
        else:
            return None
        key = (dtype, shape, settings)
        try:
            call = self._take(key, None)
        except TypeError:  # something that has no hash
            return None
        if call is None:
            return None
        source, target = address(array), address(result)
        if source != target and abs(source - target) < array.nbytes:
            return None  # they overlap
        call.run(source, target)
        self._keep(key, call)
        return result
