"""Memory for results whose number of rows depends on the other ranks: the library asks for it while a call runs.

The question comes as a callback, on the thread of the call. Where that is the main thread, Python runs the handlers of
signals in it, as in all Python code, and a handler may raise: a callback that ends so returns no address at all, and
ctypes drops the exception. Hence the two means here: ``tfc_allocate_result`` gives the library an address that was set
or NULL, and the callback continues in a generator, whose ``try`` is entered already when Python runs the first handler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator

from tfcollective._runtime.native_library import abi
from tfcollective._runtime.native_library.library import Library

_TRIES = 2  # one may end by a signal, while `make` itself fails again


class ProvidedResult:
    """The request of one call.

    Args:
        library: the native library.
        make: takes the number of rows of each rank; returns the address of the memory, None where that has no bytes.

    Attributes:
        rows: the number of rows of each rank, once the library has asked.
    """

    def __init__(self, library: Library, make: Callable[[list[int]], int | None]) -> None:
        self.rows: list[int] = []
        self._raised: list[BaseException] = []
        self._native = abi.Result(struct_size=ctypes.sizeof(abi.Result))
        self._allocate = ctypes.cast(library.function("tfc_allocate_result"), abi.AllocateFn)
        self._serving = self._serve(make)
        next(self._serving)
        self._native.provide = abi.ProvideFn(self._serving.send)

    def run(self, call: Callable[[], None], request: abi.Request) -> None:
        """Runs a call with this request, whose result is the one that is provided here.

        Raises:
            CollectiveError: from the call; its cause is what ``make`` has raised, if it has.
            BaseException: what the handler of a signal has raised meanwhile; the call has run to its end.
        """
        request.allocate = self._allocate
        request.allocate_user = ctypes.addressof(self._native)
        try:
            call()
        except Exception as error:
            if len(self._raised) == 1:
                raise self._raised[0] from error
            raise error from (self._raised[-1] if self._raised else None)
        finally:
            self._serving.close()  # it refers to this object, and `make` to the result
        if self._raised:
            raise self._raised[0]

    def _serve(self, make: Callable[[list[int]], int | None]) -> Generator[None, object, None]:
        """Answers each time that it is resumed."""
        asked = False
        while True:
            try:
                while True:
                    if asked:
                        self.rows = [int(self._native.rows[rank]) for rank in range(self._native.size)]
                        self._native.memory = make(self.rows)
                    asked = True
                    yield
            except GeneratorExit:
                return
            except BaseException as error:  # noqa: BLE001  it may not pass through C: run() raises it
                self._raised.append(error)
                asked = len(self._raised) < _TRIES
