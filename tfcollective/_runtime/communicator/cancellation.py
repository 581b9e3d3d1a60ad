"""Cancels a connect from another thread."""

from __future__ import annotations

import ctypes
import weakref

from tfcollective._runtime.native_library import Library, load


class Cancellation:
    """Ends one :meth:`~tfcollective._runtime.communicator.NativeCommunicator.connect`, from any thread."""

    def __init__(self, *, library: Library | None = None) -> None:
        self._library = library or load()
        self._handle = ctypes.c_void_p()
        self._library.call("tfc_cancellation_create", ctypes.byref(self._handle))
        self._finalizer = weakref.finalize(self, self._library.function("tfc_cancellation_release"), self._handle)
        self._finalizer.atexit = False  # a thread may be in the call when the process ends

    def request(self, cause: str) -> None:
        """The call raises CollectiveCancelledError soon; the ranks that are connected already get
        CollectiveAbortedError with ``cause``. Does not wait for that. Does nothing once the call has returned; before
        the call, it ends the call as soon as it is made. The first cause counts."""
        self._library.function("tfc_cancellation_request")(self._handle, cause.encode("utf-8", "replace"))
