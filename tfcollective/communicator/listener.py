"""Where a process accepts its peers' connections."""

from __future__ import annotations

import ctypes

from tfcollective._native import Library, abi, load
from tfcollective.errors import StateError


class Listener:
    """Where this process accepts its peers' connections.

    Args:
        bind_host: numeric address of the interface to listen on.
        node_id: ranks with equal node ids share memory.

    Raises:
        TransportError: the address cannot be bound.
    """

    def __init__(self, bind_host: str, node_id: str, *, library: Library | None = None) -> None:
        self._library = library or load()
        self._handle = ctypes.c_void_p()
        options = abi.ListenerOptions(
            struct_size=ctypes.sizeof(abi.ListenerOptions), bind_host=bind_host.encode(), node_id=node_id.encode()
        )
        self._library.call("tfc_listener_create", ctypes.byref(options), ctypes.byref(self._handle))
        buffer = ctypes.create_string_buffer(abi.ADDRESS_SIZE)
        self._library.call("tfc_listener_address", self._handle, buffer, abi.ADDRESS_SIZE)
        self.address: str = buffer.value.decode()
        """What the other ranks need to reach this one; opaque text."""

    def _release(self) -> ctypes.c_void_p:
        """Gives the native listener away."""
        if not self._handle:
            raise StateError("the listener is closed or in use by a communicator already")
        handle, self._handle = self._handle, ctypes.c_void_p()
        return handle

    def close(self) -> None:
        """Stops listening. Does nothing if a communicator has taken the listener over."""
        if self._handle:
            self._library.function("tfc_listener_destroy")(self._release())

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
