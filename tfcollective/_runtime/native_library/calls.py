"""Calls that are made again and again: the native library checks them once, and then only runs them."""

from __future__ import annotations

import ctypes

from tfcollective._runtime.native_library import abi
from tfcollective._runtime.native_library.library import Library

_KEPT = 64  # kinds of calls; beyond that the cache is emptied


class PreparedCall:
    """A ``tfc_call``. One thread at a time may run it.

    Raises:
        CollectiveError: what ``tfc_run`` would report of the request without any communication.
    """

    __slots__ = ("_error", "_error_reference", "_handle", "_release", "_run")

    def __init__(self, library: Library, communicator: ctypes.c_void_p, request: abi.Request) -> None:
        self._handle = ctypes.c_void_p()
        self._run = library.function("tfc_call_run")
        self._release = library.function("tfc_call_release")
        self._error = abi.Error(struct_size=ctypes.sizeof(abi.Error))
        self._error_reference = ctypes.byref(self._error)
        library.call("tfc_call_prepare", communicator, ctypes.byref(request), ctypes.byref(self._handle))

    def run(self, source: int | None = None, target: int | None = None) -> None:
        """Runs it between two addresses; a barrier has none.

        Raises:
            CollectiveError: as ``tfc_run``.
        """
        code = self._run(self._handle, source, target, self._error_reference)
        if code:
            Library.check("tfc_call_run", code, self._error)

    def __del__(self) -> None:
        self._release(self._handle)


class PreparedCalls:
    """The calls of one communicator that have succeeded before, by the arguments that stay the same from call to call.

    Threads may share it: a call is taken out while it runs.
    """

    def __init__(self, library: Library, communicator: ctypes.c_void_p) -> None:
        self._library = library
        self._communicator = communicator
        self._calls: dict[tuple[object, ...], PreparedCall] = {}
        self.take = self._calls.pop  # with a default: the call of that key, if there is one

    def prepare(self, request: abi.Request) -> PreparedCall:
        """A call that is not kept yet: see :meth:`keep`."""
        return PreparedCall(self._library, self._communicator, request)

    def keep(self, key: tuple[object, ...], call: PreparedCall) -> None:
        """Keeps a call that has run, unless something in its key has no hash."""
        if len(self._calls) >= _KEPT:
            self._calls.clear()
        try:
            self._calls[key] = call
        except TypeError:
            return
