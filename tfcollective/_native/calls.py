"""All-reduces that are made again and again: the native request is made once and then only pointed at other memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tfcollective._native import abi, buffers
from tfcollective._native.library import Library

_KEPT = 64  # kinds of calls; a program with more of them starts anew


class _Call:
    """A request with everything that it points to."""

    __slots__ = ("error", "error_reference", "request", "request_reference", "span")

    def __init__(self, request: abi.Request, span: abi.Span) -> None:
        self.request = request
        self.span = span
        self.error = abi.Error(struct_size=ctypes.sizeof(abi.Error))
        self.request_reference = ctypes.byref(request)
        self.error_reference = ctypes.byref(self.error)


class AllReduceCalls:
    """The all-reduces of one communicator that have succeeded before, by what does not change from call to call.

    Threads may share it: a call is taken out while it runs.
    """

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._function = library.function("tfc_run")
        self._handle = handle
        self._calls: dict[tuple[object, ...], _Call] = {}

    def repeat(self, array: object, out: object, settings: tuple[object, ...]) -> buffers.Array | None:
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
            call = self._calls.pop(key, None)
        except TypeError:  # something that has no hash
            return None
        if call is None:
            return None
        source, target = buffers.address(array), buffers.address(result)
        if source != target and abs(source - target) < array.nbytes:
            return None  # they overlap
        call.span.input, call.span.output = source, target
        code = self._function(self._handle, call.request_reference, call.error_reference)
        self._library.check("tfc_run", code, call.error)
        self._calls[key] = call
        return result

    def remember(self, array: buffers.Array, settings: tuple[object, ...], request: abi.Request, span: Any) -> None:
        """`request`, which points to `span`, has all-reduced `array` with `settings`."""
        if len(self._calls) >= _KEPT:
            self._calls.clear()
        self._calls[array.dtype, array.shape, settings] = _Call(request, span)
