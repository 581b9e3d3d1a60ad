"""The communicator's collectives on arrays that lie on (stand-in) GPUs: as with numpy arrays."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from standin import GpuArray, cuda, host, options

from tfcollective._base.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DeviceError,
    InvalidArgumentError,
    PeerLostError,
    StateError,
    UnsupportedError,
)
from tfcollective._runtime import communicator as c
from tfcollective._runtime.communicator import Listener, NativeCommunicator
from tfcollective._runtime.native_library import abi
from tfcollective._runtime.native_library.device_buffers import as_device, is_device, stream_of
from tfcollective._runtime.native_library.device_calls import DeviceArray

KEY = b"0123456789abcdef"
MOVED = ["float16", "float32", "float64"] + [f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)]
REDUCED = [name for name in MOVED if not name.endswith("16") or name == "float16"]


@pytest.fixture(autouse=True)
def fresh_standin() -> Iterator[None]:
    cuda().standin_reset()
    yield
    cuda().standin_reset()


@pytest.fixture
def world() -> Iterator[NativeCommunicator]:
    with NativeCommunicator.alone(options=options()) as made:
        yield made


def run_world(size: int, work: Callable[[NativeCommunicator], object], **changes: object) -> list[object]:
    """What `work` returned, or the CollectiveError that it raised, on every rank."""
    listeners = [Listener("127.0.0.1", "node") for _ in range(size)]
    addresses = [listener.address for listener in listeners]
    results: list[object] = [None] * size
    given = options(**changes)

    def run(rank: int) -> None:
        try:
            world = NativeCommunicator.connect(listeners[rank], rank=rank, addresses=addresses, key=KEY, options=given)
            results[rank] = work(world)
            world.close(5)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, CollectiveError):
            raise result
    return results


def test_a_result_in_a_cycle_is_collected() -> None:
    world = NativeCommunicator.alone(options=options())
    result = world.allreduce(GpuArray(np.ones(3)))
    collected = weakref.ref(result)
    cycle: list[object] = [world, result]
    cycle.append(cycle)
    del world, result, cycle
    gc.collect()
    assert collected() is None


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (4097,)])
def test_every_collective_keeps_the_data_of_one_rank(
    world: NativeCommunicator, dtype: str, shape: tuple[int, ...]
) -> None:
    values = (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)
    array = GpuArray(values)
    if dtype in REDUCED:
        for op in (c.Average, c.Sum, c.Min, c.Max, c.Product):
            if op is c.Average and np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize < 8:
                with pytest.raises(UnsupportedError, match="may wrap: average 64-bit integers or floats"):
                    world.allreduce(array, op)
                continue
            got = world.allreduce(array, op)
            assert isinstance(got, DeviceArray)
            np.testing.assert_array_equal(host(got), values)
        np.testing.assert_array_equal(host(world.reducescatter(array, c.Sum)), values)
    np.testing.assert_array_equal(host(world.broadcast(array)), values)
    np.testing.assert_array_equal(host(world.allgather(array)), values)
    got, rows = world.alltoall(array)
    np.testing.assert_array_equal(host(got), values)
    assert rows == [shape[0]]


def test_collectives_of_three_ranks() -> None:
    def work(world: NativeCommunicator) -> None:
        everyone = [np.arange(5.0) + r for r in range(3)]
        mine = GpuArray(everyone[world.rank], world.rank)
        np.testing.assert_array_equal(host(world.allreduce(mine, c.Sum)), sum(everyone))
        np.testing.assert_array_equal(host(world.allreduce(mine)), sum(everyone) / 3)
        np.testing.assert_array_equal(
            host(world.allreduce(mine, c.Sum, prescale=0.5, postscale=4.0)), 2 * sum(everyone)
        )
        np.testing.assert_array_equal(host(world.allreduce(mine, c.Max)), everyone[-1])
        np.testing.assert_array_equal(host(world.broadcast(mine, 2)), everyone[2])
        rows = np.array_split(sum(everyone), 3)[world.rank]
        np.testing.assert_array_equal(host(world.reducescatter(mine, c.Sum)), rows)
        part = GpuArray(everyone[world.rank][: world.rank], world.rank)
        np.testing.assert_array_equal(
            host(world.allgather(part)), np.concatenate([e[:r] for r, e in enumerate(everyone)])
        )
        got, counts = world.alltoall(GpuArray(np.repeat(float(world.rank), 6), world.rank), [1, 2, 3])
        np.testing.assert_array_equal(host(got), np.repeat(np.arange(3.0), world.rank + 1))
        assert counts == [world.rank + 1] * 3
        ticket = world.ticket()
        assert ticket is not None
        ticket.wait()
        world.barrier()
        np.testing.assert_array_equal(world.allreduce(np.ones(2), c.Sum), np.full(2, 3.0))  # the host's way still works

    assert run_world(3, work) == [None] * 3


def test_out_and_in_place(world: NativeCommunicator) -> None:
    array, out = GpuArray(np.ones(4)), GpuArray(np.zeros(4))
    assert world.allreduce(array, c.Sum, postscale=2.0, out=out) is out
    np.testing.assert_array_equal(host(out), np.full(4, 2.0))
    world.allreduce(array, c.Sum, postscale=3.0, out=array)
    np.testing.assert_array_equal(host(array), np.full(4, 3.0))


def test_follows_the_callers_stream(world: NativeCommunicator) -> None:
    stream = ctypes.c_void_p()
    cuda().cuStreamCreateWithPriority(ctypes.byref(stream), 0, 0)
    array = GpuArray(np.zeros(4))
    filled = np.full(4, 5.0)
    release = threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def kernel(_user: object) -> None:
        release.wait(20)
        ctypes.memmove(array.__cuda_array_interface__["data"][0], filled.ctypes.data, filled.nbytes)

    cuda().cuLaunchHostFunc(stream, kernel, None)
    got = world.allreduce(array, c.Sum, stream=stream.value)  # comes back although the kernel is not done
    ticket = world.ticket()
    assert ticket is not None
    with pytest.raises(CollectiveTimeoutError):
        ticket.wait(0.05)
    for nothing in (0, -1):
        with pytest.raises(InvalidArgumentError, match="timeout: expected seconds above 0"):
            ticket.wait(nothing)
    release.set()
    ticket.wait(20)
    np.testing.assert_array_equal(host(got), filled)


def test_no_ticket_without_an_operation_on_a_gpu(world: NativeCommunicator) -> None:
    world.allreduce(np.ones(1))
    assert world.ticket() is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.allreduce(GpuArray(np.ones((3, 4)), order="F")), "array: .* must be C-contiguous"),
        (lambda w: w.allreduce(GpuArray(np.ones(4)), out=np.ones(4)), "out: expected an array on a GPU"),
        (lambda w: w.allreduce(GpuArray(np.ones(4)), out=GpuArray(np.ones(5))), "out: expected a writeable array"),
        (lambda w: w.allreduce(GpuArray(np.ones(4)), stream="fast"), "stream: expected a stream"),
        (lambda w: w.allreduce(np.ones(4), stream=7), "stream: only for arrays on a GPU"),
        (lambda w: w.reducescatter(GpuArray(np.float32(1))), "at least one dimension"),
        (lambda w: w.alltoall(GpuArray(np.ones(4)), [3]), "splits: expected 1 counts"),
        (lambda w: w.broadcast(GpuArray(np.ones(4)), 1), "root: expected a rank below 1"),
        (lambda w: w.allreduce(HostMemory()), "memory of the host, not of a GPU"),
    ],
)
def test_bad_arguments(world: NativeCommunicator, call: Callable[[NativeCommunicator], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(world)
    np.testing.assert_array_equal(host(world.allreduce(GpuArray(np.ones(2)), c.Sum)), np.ones(2))


class HostMemory:
    """Says that it is on a GPU, and is not."""

    def __init__(self) -> None:
        self.values = np.ones(4)
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f8",
            "data": (self.values.ctypes.data, False),
            "version": 3,
        }


def test_the_wrong_gpu_is_named(world: NativeCommunicator) -> None:
    world.allreduce(GpuArray(np.ones(2), 0), out=GpuArray(np.ones(2), 0))
    other = GpuArray(np.ones(2), 1)
    with pytest.raises(InvalidArgumentError, match="it is on GPU 1, but rank 0 works on GPU 0"):
        world.allreduce(other, out=other)


def test_types_that_nccl_does_not_reduce(world: NativeCommunicator) -> None:
    array = GpuArray(np.ones(2, np.int16))
    with pytest.raises(UnsupportedError, match="NCCL cannot reduce int16"):
        world.allreduce(array, c.Sum)
    with pytest.raises(UnsupportedError, match="elements of type '<c8'"):
        world.allreduce(GpuArray(np.ones(2, np.complex64)))


def test_ranks_that_differ_are_shown() -> None:
    def work(world: NativeCommunicator) -> None:
        array = GpuArray(np.ones(3 + world.rank, np.float32), world.rank)
        world.allreduce(array, c.Sum, out=array)
        world.ticket().wait()

    for error in run_world(2, work):
        assert isinstance(error, CollectiveMismatchError)
        assert "rank 0: allreduce 'allreduce' float32[3] sum; rank 1: allreduce 'allreduce' float32[4] sum" in str(
            error
        )


def test_every_rank_explains_a_missing_nccl() -> None:
    def work(world: NativeCommunicator) -> None:
        array = GpuArray(np.ones(3), world.rank)
        world.allreduce(array, out=array)

    for error in run_world(2, work, nccl="/nowhere/libnccl.so.2"):
        assert isinstance(error, UnsupportedError)
        assert "cannot use GPUs: TFCOLLECTIVE_NCCL=/nowhere/libnccl.so.2" in str(error)


def test_without_a_driver(tmp_path) -> None:
    given = options(cuda_driver=str(tmp_path / "libcuda.so.1"))
    with NativeCommunicator.alone(options=given) as world:
        with pytest.raises(UnsupportedError, match=r"there is no CUDA driver on this host.*libcuda"):
            world.allreduce(GpuArray(np.ones(3)))
        np.testing.assert_array_equal(world.allreduce(np.ones(3)), np.ones(3))


def test_an_nccl_error_names_its_gpu() -> None:
    cuda().standin_set(b"fail:ncclAllReduce", 3)

    def work(world: NativeCommunicator) -> None:
        array = GpuArray(np.ones(3), world.rank)
        for _ in range(5):
            world.allreduce(array, c.Sum, out=array)
            world.ticket().wait()

    for error in run_world(2, work):
        assert isinstance(error, DeviceError)
        assert "Stand-in" in str(error) and "unhandled system error" in str(error)


def test_a_rank_that_leaves_is_named() -> None:
    def work(world: NativeCommunicator) -> None:
        array = GpuArray(np.ones(3), world.rank)
        for _ in range(1 if world.rank == 1 else 2):
            world.allreduce(array, c.Sum, out=array)
            world.ticket().wait()

    stayed, left = run_world(2, work)
    assert left is None
    assert isinstance(stayed, PeerLostError)
    assert stayed.peer == 1


def test_results_outlive_the_communicator() -> None:
    world = NativeCommunicator.alone(options=options())
    result, ticket = world.allreduce(GpuArray(np.ones(4)), c.Sum), world.ticket()
    world.close()
    del world
    np.testing.assert_array_equal(host(result), np.ones(4))
    ticket.wait()


def test_a_closed_communicator_says_so() -> None:
    world = NativeCommunicator.alone(options=options())
    world.close()
    with pytest.raises(StateError, match="closed"):
        world.allreduce(GpuArray(np.ones(2)))


# ---- what an array says of itself ----


@pytest.mark.parametrize("value", [1.0, [1, 2], np.ones(3), np.float32(1), "x", None])
def test_what_is_not_on_a_gpu(value: object) -> None:
    assert not is_device(value)


class Packed:
    """An array that speaks DLPack only, as PyTorch's do for bfloat16."""

    def __init__(self, code: int, bits: int, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        from tfcollective._runtime.native_library.device_buffers import DlDevice, DlTensor, DlType

        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.tensor = DlTensor(0x1000, DlDevice(2, 0), len(shape), DlType(code, bits, 1), self.shape, self.strides, 16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, stream: int | None = None) -> object:
        assert stream == -1
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


def test_dlpack() -> None:
    buffer = as_device(Packed(4, 16, (2, 3), None), "array")
    assert (buffer.pointer, buffer.shape, buffer.dtype) == (0x1010, (2, 3), abi.DType.BFLOAT16)
    assert as_device(Packed(2, 32, (2, 3), (3, 1)), "array").dtype == abi.DType.FLOAT32
    with pytest.raises(InvalidArgumentError, match=r"array: .* must be C-contiguous"):
        as_device(Packed(2, 32, (2, 3), (1, 2)), "array")
    with pytest.raises(UnsupportedError, match="DLPack elements"):
        as_device(Packed(5, 64, (2,), None), "array")


def test_an_inexpressible_result_is_refused(world: NativeCommunicator) -> None:
    array = Packed(4, 16, (2, 3), None)
    for call in (world.allreduce, world.reducescatter, world.broadcast, world.allgather, world.alltoall):
        with pytest.raises(UnsupportedError, match="a result of bfloat16 can be made for PyTorch and CuPy only"):
            call(array)


class OfLibrary:
    def __init__(self, **names: object) -> None:
        self.__dict__.update(names)


def test_streams_of_all_libraries() -> None:
    buffer = as_device(GpuArray(np.ones(2)), "array")
    assert stream_of(buffer, None) == 0
    assert stream_of(buffer, 77) == 77
    for name in ("ptr", "cuda_stream", "handle"):
        assert stream_of(buffer, OfLibrary(**{name: 78})) == 78
    assert stream_of(buffer, OfLibrary(handle=ctypes.c_void_p(79))) == 79
    assert stream_of(buffer, OfLibrary(handle=ctypes.c_void_p(0))) == 0
    assert stream_of(buffer, OfLibrary(handle=np.uint64(80))) == 80
    for nonsense in (1.5, -1, "77", object()):
        with pytest.raises(InvalidArgumentError, match="stream: expected a stream or its handle"):
            stream_of(buffer, nonsense)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mask": object()}, UnsupportedError, "array: an array with a mask"),
        ({"typestr": "<M8[ns]"}, UnsupportedError, r"elements of type '<M8\[ns\]'"),
        ({"typestr": ">f4"}, UnsupportedError, "elements of type '>f4'"),
        ({"strides": (8, 8)}, InvalidArgumentError, r"has shape \(2,\), but strides \(8, 8\)"),
    ],
)
def test_an_array_that_cannot_be_taken(changes: dict[str, object], error: type[Exception], message: str) -> None:
    array = GpuArray(np.ones(2))
    array.__cuda_array_interface__.update(changes)
    with pytest.raises(error, match=message):
        as_device(array, "array")


# ---- which NCCL ----

FINDER = """
import ctypes, json, sys
from tfcollective._runtime import native_library as _native
from tfcollective._runtime.native_library.device_calls import DeviceSearch, find_libraries
nccl, driver, *loaded = sys.argv[1:]
others = [ctypes.CDLL(path) for path in loaded]
found = find_libraries(_native.load(), DeviceSearch(nccl=nccl or None, cuda_driver=driver))
print(json.dumps([found.nccl_path.decode(), found.nccl_version, found.problem.decode()]))
"""


def find_nccl(chosen: str, *loaded: Path, packages: Path | None = None) -> tuple[str, int, str]:
    """Path, version and problem of the NCCL of a process that has `loaded` other libraries before."""
    places = [entry for entry in (*sys.path, str(packages or "")) if entry]
    line = [sys.executable, "-c", FINDER, chosen, str(options().cuda_driver), *map(str, loaded)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    path, version, problem = json.loads(done.stdout)
    return path, version, problem


def make_nccl(folder: Path, version: int | None = None) -> Path:
    """A library that the loader knows as NCCL: the stand-in, or one that says it has this version."""
    made, stand_in = folder / "libnccl.so.2", Path(str(options().nccl))
    source = f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}" if version else ""
    line = ["g++", "-x", "c", "-", "-shared", "-fPIC", f"-Wl,-soname,{made.name}", "-o", str(made)]
    line += ["-Wl,--no-as-needed", "-x", "none", str(stand_in), f"-Wl,-rpath,{stand_in.parent}"]
    folder.mkdir(parents=True)
    subprocess.run(line, input=source, text=True, check=True)
    return made


def test_nccl_is_searched_in_process_then_packages(tmp_path: Path) -> None:
    packaged = make_nccl(tmp_path / "packages" / "nvidia" / "nccl" / "lib")
    loaded = make_nccl(tmp_path / "loaded", 22899)
    assert find_nccl("", packages=tmp_path / "packages") == (str(packaged), 22703, "")
    assert find_nccl("", loaded, packages=tmp_path / "packages") == (str(loaded), 22899, "")


def test_two_nccl_versions_in_a_process_fail(tmp_path: Path) -> None:
    chosen, loaded = str(options().nccl), make_nccl(tmp_path / "loaded", 22899)
    path, version, problem = find_nccl(chosen, loaded)
    assert (path, version) == ("", 0)
    assert "two versions of NCCL in one process" in problem
    assert f"TFCOLLECTIVE_NCCL={chosen} is 2.27.3, but {loaded} (2.28.99) is loaded already" in problem
    assert find_nccl(chosen, make_nccl(tmp_path / "same")) == (chosen, 22703, "")
