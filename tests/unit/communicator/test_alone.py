"""A world of one rank: every collective, type and shape, and every bad argument."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tfcollective._base.errors import InvalidArgumentError, StateError, UnsupportedError
from tfcollective._runtime import communicator as c
from tfcollective._runtime.communicator import CommunicatorOptions, NativeCommunicator
from tfcollective._runtime.native_library import abi, load

TYPES = ["float16", "float32", "float64"] + [f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)]


@pytest.fixture
def world() -> NativeCommunicator:
    with NativeCommunicator.alone() as made:
        yield made


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (4097,)])
def test_every_collective_keeps_the_data(world: NativeCommunicator, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)
    for op in (c.Average, c.Sum, c.Min, c.Max, c.Product):
        got = world.allreduce(array, op)
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
        assert got is not array
    np.testing.assert_array_equal(world.broadcast(array), array)
    np.testing.assert_array_equal(world.allgather(array), array if shape else array.reshape(1))
    if shape:
        np.testing.assert_array_equal(world.reducescatter(array), array)
        got, rows = world.alltoall(array)
        np.testing.assert_array_equal(got, array)
        assert rows == [shape[0]]
    world.barrier()
    world.barrier(timeout=np.array(5.0))  # which has no hash


def test_bool(world: NativeCommunicator) -> None:
    array = np.array([True, False])
    np.testing.assert_array_equal(world.broadcast(array), array)
    np.testing.assert_array_equal(world.allgather(array), array)


def test_bfloat16(world: NativeCommunicator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones(3, ml_dtypes.bfloat16)
    assert world.allreduce(array, c.Sum).dtype == array.dtype


def test_scales(world: NativeCommunicator) -> None:
    np.testing.assert_array_equal(world.allreduce([1.0, 2.0], c.Sum, prescale=3.0, postscale=0.5), [1.5, 3.0])
    np.testing.assert_array_equal(world.reducescatter([1.0, 2.0], c.Sum, prescale=2.0), [2.0, 4.0])


def test_out_and_in_place(world: NativeCommunicator) -> None:
    array, out = np.ones(4), np.zeros(4)
    assert world.allreduce(array, c.Sum, postscale=2.0, out=out) is out
    np.testing.assert_array_equal(out, np.full(4, 2.0))
    world.allreduce(array, c.Sum, postscale=3.0, out=array)
    np.testing.assert_array_equal(array, np.full(4, 3.0))
    buffer = np.arange(5.0)
    world.broadcast(buffer[:4], out=buffer[1:])  # overlapping
    np.testing.assert_array_equal(buffer, [0.0, 0.0, 1.0, 2.0, 3.0])


def test_what_is_not_contiguous_or_native_is_copied(world: NativeCommunicator) -> None:
    grid = np.arange(12.0).reshape(3, 4)
    for array in (grid.T, grid[:, ::2], grid[::-1], np.asfortranarray(grid), grid.astype(">f8"), [[1, 2], [3, 4]]):
        np.testing.assert_array_equal(world.allreduce(array, c.Sum), array)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.allreduce(["text"]), "array: dtype"),
        (lambda w: w.allreduce([1j]), "array: dtype"),
        (lambda w: w.allreduce(np.ma.masked_array([1.0, 2.0], [True, False])), "array: a masked array"),
        (lambda w: w.allreduce([1.0], op=2), "op: expected one of Average"),
        (lambda w: w.allreduce([1.0], out=np.zeros(2)), "out: expected dtype float64 and shape"),
        (lambda w: w.allreduce([1.0], out=np.zeros(1, np.float32)), "out: expected"),
        (lambda w: w.allreduce([1.0], out=[0.0]), "out: expected a numpy array"),
        (lambda w: w.allreduce(np.ones(2), out=np.ones(4)[::2]), "out: must be"),
        *((lambda w, t=t: w.allreduce([1.0], timeout=t), "timeout") for t in (0, float("nan"), float("inf"), 1.1e6)),
        *((lambda w, t=t: w.join(timeout=t), "timeout") for t in (-1, float("nan"), 1.1e6)),
        (lambda w: w.broadcast([1.0], root=1), "root: expected a rank below 1"),
        (lambda w: w.broadcast([1.0], root=-1), "root"),
        (lambda w: w.reducescatter(1.0), "array: reducescatter"),
        (lambda w: w.alltoall(1.0), "array: alltoall"),
        (lambda w: w.alltoall([1.0, 2.0], splits=[1]), "splits"),
        (lambda w: w.alltoall([1.0, 2.0], splits=[1, 1]), "splits"),
    ],
)
def test_bad_arguments_are_named(world: NativeCommunicator, call: object, message: str) -> None:
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=message):
        call(world)
    world.barrier()  # nothing has happened to the communicator


def test_info_and_repr(world: NativeCommunicator) -> None:
    info = world.info()
    assert (info.rank, info.size, info.local_size, info.cross_size, info.broken) == (0, 1, 1, 1, False)
    assert repr(world) == "<NativeCommunicator rank 0 of 1>"
    assert world.failure() is None


def test_after_close_everything_says_so() -> None:
    world = NativeCommunicator.alone()
    world.close()
    world.close()
    assert world.closed
    assert "closed" in repr(world)
    with pytest.raises(StateError, match="closed"):
        world.barrier()


def test_an_error_inside_the_block_aborts() -> None:
    with pytest.raises(ZeroDivisionError), NativeCommunicator.alone() as world:
        raise ZeroDivisionError
    assert world.closed


def test_a_fork_must_not_use_it(world: NativeCommunicator) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            world.barrier()
        except StateError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"fork" in os.read(read_end, 4096)
    os.close(read_end)
    os.close(write_end)
    world.barrier()


def test_threads_may_share_it(world: NativeCommunicator) -> None:
    results: list[float] = []

    def run(number: float) -> None:
        results.extend(float(world.allreduce(number)) for _ in range(50))

    threads = [threading.Thread(target=run, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([0.0, 1.0, 2.0, 3.0] * 50)


RELEASE = """
import gc, json, os, threading
from tfcollective._runtime.communicator import NativeCommunicator
counts = []
for _ in range(3):
    for _ in range(20):
        NativeCommunicator.alone().barrier()
    gc.collect()
    counts.append([threading.active_count(), len(os.listdir("/proc/self/fd"))])
print(json.dumps(counts))
"""


def test_being_forgotten_releases_it() -> None:
    # In a process of its own: threads and descriptors that other tests have left may go at any time.
    done = subprocess.run([sys.executable, "-c", RELEASE], capture_output=True, text=True, check=True, timeout=60)
    first, second, third = json.loads(done.stdout)
    assert first == second == third


def test_transport_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="transport"):
        NativeCommunicator.connect(
            None, rank=0, addresses=[""], key=bytes(16), options=c.CommunicatorOptions(transport="pigeon")
        )


@pytest.mark.parametrize("field", ["connect_timeout", "op_timeout", "stall_warning"])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1.1e6])
def test_the_library_refuses_impossible_timeouts(field: str, seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 0 to 1000000 seconds, not"):
        NativeCommunicator.alone(options=CommunicatorOptions(**{field: seconds}))


def test_an_impossible_operation_timeout_spares_the_world() -> None:
    with NativeCommunicator.alone() as world:
        request = abi.Request(
            struct_size=ctypes.sizeof(abi.Request), collective=abi.Collective.BARRIER, timeout_s=float("nan")
        )
        with pytest.raises(InvalidArgumentError, match="barrier: timeout: expected 0 to"):
            load().call("tfc_run", world._handle, ctypes.byref(request))
        world.barrier()
