"""Signals whose Python handlers raise while a collective asks for memory on the main thread."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tfcollective._base.errors import ResourceExhaustedError
from tfcollective._runtime.communicator import CommunicatorOptions, Listener, NativeCommunicator
from tfcollective._runtime.native_library import abi, load
from tfcollective._runtime.native_library.results import ProvidedResult

KEY = b"0123456789abcdef"
OPTIONS = CommunicatorOptions(connect_timeout=60, op_timeout=60)


class Interrupted(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def handle(*_signal: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def both() -> Iterator[tuple[NativeCommunicator, NativeCommunicator]]:
    """The two ranks of a world."""
    listeners = [Listener("127.0.0.1", "node") for _ in range(2)]
    addresses = [listener.address for listener in listeners]
    ranks: dict[int, NativeCommunicator] = {}

    def connect(rank: int) -> None:
        ranks[rank] = NativeCommunicator.connect(
            listeners[rank], rank=rank, addresses=addresses, key=KEY, options=OPTIONS
        )

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    yield ranks[0], ranks[1]
    for world in ranks.values():
        world.close(1)


def interrupt_while_waiting(waits: NativeCommunicator, then: Callable[[], object]) -> threading.Thread:
    """Once the main thread waits in an operation, sends it the signal, and then has the other rank come."""
    main = threading.main_thread().ident
    assert main is not None

    def act() -> None:
        while waits.info().pending == 0:
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)  # from now on it is pending, and the main thread still waits
        then()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("operation", ["allgather", "alltoall", "allreduce"])
def test_a_signal_handlers_exception_spares_the_world(
    both: tuple[NativeCommunicator, NativeCommunicator], operation: str
) -> None:
    waits, comes = both
    array = np.ones(20000)
    other = interrupt_while_waiting(waits, lambda: getattr(comes, operation)(array))
    with pytest.raises(Interrupted):
        getattr(waits, operation)(array)
    other.join(60)
    other = threading.Thread(target=lambda: comes.allgather(array))
    other.start()
    assert waits.allgather(array).sum() == 40000
    other.join(60)


def test_a_callback_that_raises_gives_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _raised: None)  # ctypes drops the exception

    def fails(_result: object) -> None:
        raise Interrupted

    result = abi.Result(struct_size=ctypes.sizeof(abi.Result), memory=1, provide=abi.ProvideFn(fails))
    rows = (ctypes.c_int64 * 1)(5)
    assert load().function("tfc_allocate_result")(ctypes.byref(result), rows, 1) is None
    assert (result.size, result.rows[0]) == (1, 5)


def test_failed_allocation_is_the_errors_cause() -> None:
    def fails(rows: list[int]) -> int:
        raise MemoryError(rows)

    with NativeCommunicator.alone() as world:
        result = ProvidedResult(load(), fails)
        source = np.ones(3)
        request = abi.Request(
            struct_size=ctypes.sizeof(abi.Request),
            collective=abi.Collective.ALLGATHER,
            dtype=abi.DType.FLOAT64,
            prescale=1.0,
            postscale=1.0,
            shape=(ctypes.c_int64 * 1)(3),
            ndim=1,
        )
        span = abi.Span(input=source.ctypes.data, count=3)
        with pytest.raises(ResourceExhaustedError, match="no memory for a result of 24 bytes") as raised:
            result.run(lambda: world._run(request, span), request)
    assert isinstance(raised.value.__cause__, MemoryError)


def test_results_are_freed_without_garbage_collection() -> None:
    gc.disable()
    try:
        with NativeCommunicator.alone() as world:
            gathered = world.allgather(np.ones(3))
            kept = weakref.ref(gathered)
            del gathered
            assert kept() is None
    finally:
        gc.enable()
