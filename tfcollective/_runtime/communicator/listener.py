"""Listeners, which accept the connections of peers."""

from __future__ import annotations

import ctypes

from tfcollective._base.errors import StateError
from tfcollective._base.topology import PortRange
from tfcollective._runtime.native_library import Library, abi, load


class Listener:
    """Accepts the connections of this process's peers.

    Args:
        bind_host: numeric address of the interface to listen on.
        node_id: ranks with equal node ids share memory.
        ports: listen on the first free one of these; None: on any.

    Raises:
        TransportError: the address cannot be bound.
        ResourceExhaustedError: none of the ports is free.
    """

    def __init__(
        self, bind_host: str, node_id: str, *, ports: PortRange | None = None, library: Library | None = None
    ) -> None:
        self._library = library or load()
        self._handle = ctypes.c_void_p()
        options = abi.ListenerOptions(
            struct_size=ctypes.sizeof(abi.ListenerOptions),
            bind_host=bind_host.encode(),
            node_id=node_id.encode(),
            first_port=0 if ports is None else ports.low,
            last_port=0 if ports is None else ports.high,
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
