"""The collectives on arrays that lie on a GPU: imported when the first one is given."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.native_library import abi
from tfcollective._runtime.native_library.device_buffers import TYPES, DeviceBuffer, as_device, stream_of
from tfcollective._runtime.native_library.library import Library
from tfcollective._runtime.native_library.results import ProvidedResult

_MAKERS = ("torch", "cupy")  # libraries whose arrays are made here
_TYPESTR = {dtype: f"{'|' if kind == 'b' else '<'}{kind}{size}" for (kind, size), dtype in TYPES.items()}


class DeviceSearch:
    """The places to search for the CUDA driver and NCCL, as the native library wants them.

    Args:
        nccl: this file or none; None looks for a loaded copy, then in the packages nvidia-nccl-*, then at the loader.
        cuda_driver: this file instead of libcuda.so.1.
        share: several ranks may use one GPU.
        max_ctas: the number of blocks of a GPU that NCCL may take; 0 for its own choice.
    """

    def __init__(
        self, *, nccl: str | None = None, cuda_driver: str | None = None, share: bool = False, max_ctas: int = 0
    ) -> None:
        candidates = [str(path).encode() for path in _packaged_nccl()]
        self.options = abi.DeviceOptions(
            struct_size=ctypes.sizeof(abi.DeviceOptions),
            cuda_library=None if cuda_driver is None else cuda_driver.encode(),
            nccl_library=None if nccl is None else nccl.encode(),
            nccl_candidates=(ctypes.c_char_p * max(len(candidates), 1))(*candidates),
            num_nccl_candidates=len(candidates),
            share_gpus=share,
            max_ctas=max_ctas,
        )


def _packaged_nccl() -> list[Path]:
    """The libraries of the packages nvidia-nccl-cu12 and -cu13, in the order of sys.path."""
    places = [Path(entry) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for entry in sys.path if entry]
    return [place for place in places if place.exists()]


def find_libraries(library: Library, search: DeviceSearch) -> abi.DeviceLibraries:
    """Returns the driver and NCCL that were found; `problem` says what is missing."""
    found = abi.DeviceLibraries(struct_size=ctypes.sizeof(abi.DeviceLibraries))
    library.call("tfc_device_find", ctypes.byref(search.options), ctypes.byref(found))
    return found


def describe_gpus(library: Library, search: DeviceSearch, count: int) -> list[abi.DeviceInfo]:
    """The GPUs that this process sees."""
    infos = []
    for ordinal in range(count):
        info = abi.DeviceInfo(struct_size=ctypes.sizeof(abi.DeviceInfo))
        library.call("tfc_device_describe", ctypes.byref(search.options), ordinal, ctypes.byref(info))
        infos.append(info)
    return infos


class _Memory:
    """Memory of a GPU; freed with the last reference to it."""

    def __init__(self, calls: DeviceCalls, like: int | None, nbytes: int) -> None:
        self._calls = calls
        self._owner = calls.owner()  # the handle lives as long as the communicator
        self._pid = os.getpid()
        pointer = ctypes.c_void_p()
        if nbytes:
            calls.library.call("tfc_device_allocate", calls.handle, like, nbytes, ctypes.byref(pointer))
        self.pointer = int(pointer.value or 0)

    def __del__(self) -> None:
        # In a cycle the communicator may have been ended first: then the memory stays until the driver's context ends.
        if getattr(self, "pointer", 0) and self._calls.handle and os.getpid() == self._pid:
            self._calls.library.function("tfc_device_free")(self._calls.handle, self.pointer)


class DeviceArray:
    """A result on the GPU, for libraries whose arrays cannot be made here.

    ``cupy.asarray``, ``numba.cuda.as_cuda_array`` and ``torch.as_tensor`` take it as it is, without a copy.

    Attributes:
        shape: as in numpy.
        dtype_name: as in numpy: "float32".
    """

    def __init__(self, memory: _Memory, shape: tuple[int, ...], dtype: abi.DType, stream: int) -> None:
        self._memory = memory
        self._stream = stream
        self._dtype = dtype
        self.shape = shape
        self.dtype_name = dtype.name.lower()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._dtype not in _TYPESTR:
            raise AttributeError(f"__cuda_array_interface__ has no {self.dtype_name}")
        return {
            "shape": self.shape,
            "typestr": _TYPESTR[self._dtype],
            "data": (self._memory.pointer, False),
            "version": 3,
            "strides": None,
            "stream": self._stream or 1,
        }


class Ticket:
    """An operation on the GPU that the host can wait for."""

    def __init__(self, calls: DeviceCalls, number: int) -> None:
        self._calls = calls
        self._owner = calls.owner()
        self._number = number

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the operation and those before it are complete, and known to be the same on all ranks.

        Args:
            timeout: seconds; the communicator's default if None. When it passes, nothing has changed: wait again.

        Raises:
            CollectiveError: what ended the communicator, or CollectiveTimeoutError.
            InvalidArgumentError: no time at all.
        """
        if timeout is not None and timeout <= 0:
            raise InvalidArgumentError(f"timeout: expected seconds above 0, got {timeout}")
        seconds = ctypes.c_double(timeout or 0.0)
        self._calls.library.call("tfc_device_wait", self._calls.handle, self._number, seconds)


class DeviceCalls:
    """The collectives of one communicator on its rank's GPU. Calls return when the GPU has the operation, not when it
    is complete: what is given to the same stream afterwards comes after it."""

    def __init__(
        self, owner: object, library: Library, handle: ctypes.c_void_p, rank: int, size: int, search: DeviceSearch
    ) -> None:
        self.owner = weakref.ref(owner)  # the communicator, which has this object
        self.library = library
        self.handle = handle
        self._last: int | None = None
        self._rank = rank
        self._size = size
        library.call("tfc_device_configure", handle, ctypes.byref(search.options))

    def like_input(self, request: abi.Request, array: Any, out: Any, stream: Any) -> Any:
        """Runs an all-reduce or a broadcast: the result has the shape of the input, and goes to `out` if given."""
        source = as_device(array, "array")
        on = stream_of(source, stream)
        result = self._new(source.shape, source, on) if out is None else out
        target = as_device(result, "out")
        _check_output(source, target, self._size_of(source.dtype))
        self._run(request, source, target.pointer, on)
        return result

    def reducescatter(self, request: abi.Request, array: Any, stream: Any) -> Any:
        """Returns this rank's rows, as :meth:`Communicator.reducescatter`."""
        source = _rows(as_device(array, "array"))
        count = source.shape[0] // self._size + (self._rank < source.shape[0] % self._size)
        shape = (count, *source.shape[1:])
        on = stream_of(source, stream)
        result = self._new(shape, source, on)
        self._run(request, source, as_device(result, "out").pointer, on)
        return result

    def allgather(self, request: abi.Request, array: Any, stream: Any) -> Any:
        """Returns all ranks' rows, as :meth:`Communicator.allgather`."""
        source = as_device(array, "array")
        if not source.shape:
            source = DeviceBuffer(source.pointer, (1,), source.dtype, source.owner, source.stream)
        return self._gather(request, source, stream)[0]

    def alltoall(self, request: abi.Request, array: Any, splits: Any, stream: Any) -> tuple[Any, list[int]]:
        """Rows from all ranks, and how many from each; as :meth:`Communicator.alltoall`."""
        from tfcollective._runtime.native_library import buffers

        source = _rows(as_device(array, "array"))
        counts = buffers.as_splits(splits, self._size, source.shape[0])
        if counts is not None:
            request.splits = buffers.int64s(counts)
        return self._gather(request, source, stream)

    def ticket(self) -> Ticket | None:
        """Returns a ticket to wait for the last operation; None if there was none."""
        return None if self._last is None else Ticket(self, self._last)

    def _gather(self, request: abi.Request, source: DeviceBuffer, stream: Any) -> tuple[Any, list[int]]:
        on = stream_of(source, stream)
        if _library_of(source) not in _MAKERS:
            _check_can_be_described(source)  # before the others count on this rank
        made: list[Any] = []

        def make(rows: list[int]) -> int | None:
            made[:] = [self._new((sum(rows), *source.shape[1:]), source, on)]
            return as_device(made[0], "result").pointer or None

        result = ProvidedResult(self.library, make)
        result.run(lambda: self._run(request, source, None, on), request)
        return made[0], result.rows

    def _new(self, shape: tuple[int, ...], like: DeviceBuffer, stream: int) -> Any:
        """An array of the library of `like` where it can be made, else a ``DeviceArray``."""
        owner = like.array
        library = _library_of(like)
        if library == "torch":
            return owner.new_empty(shape)
        if library == "cupy":
            return sys.modules["cupy"].empty(shape, owner.dtype)
        _check_can_be_described(like)
        nbytes = math.prod(shape) * self._size_of(like.dtype)
        return DeviceArray(_Memory(self, like.pointer or None, nbytes), shape, like.dtype, stream)

    def _run(self, request: abi.Request, source: DeviceBuffer, output: int | None, stream: int) -> None:
        span = abi.Span(input=source.pointer or None, output=output, count=source.size)
        shape: Sequence[int] = source.shape
        request.dtype = source.dtype
        request.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        request.ndim = len(shape)
        request.spans = ctypes.pointer(span)
        request.num_spans = 1
        call = abi.DeviceCall(struct_size=ctypes.sizeof(abi.DeviceCall), device=-1, by_name=0, stream=stream or None)
        ticket = ctypes.c_uint64()
        self.library.call(
            "tfc_device_run", self.handle, ctypes.byref(request), ctypes.byref(call), ctypes.byref(ticket)
        )
        self._last = ticket.value

    def _size_of(self, dtype: abi.DType) -> int:
        return int(self.library.function("tfc_dtype_size")(dtype))


def _library_of(buffer: DeviceBuffer) -> str:
    return type(buffer.array).__module__.partition(".")[0]


def _check_can_be_described(like: DeviceBuffer) -> None:
    """A ``DeviceArray`` says what it is by ``__cuda_array_interface__``, which has no bfloat16."""
    if like.dtype not in _TYPESTR:
        raise UnsupportedError(
            f"array: a result of {like.dtype.name.lower()} can be made for PyTorch and CuPy only, and not for a "
            f"{type(like.array).__name__}: give another type, or 'out' where the operation has it"
        )


def _check_output(source: DeviceBuffer, target: DeviceBuffer, element: int) -> None:
    if target.shape != source.shape or target.dtype != source.dtype or not target.writeable:
        raise InvalidArgumentError(
            f"out: expected a writeable array of {source.dtype.name.lower()} and shape {source.shape}, "
            f"got {target.dtype.name.lower()} and {target.shape}"
        )
    if 0 < abs(source.pointer - target.pointer) < source.size * element:
        raise InvalidArgumentError("out: overlaps the input; it may be the same memory, or apart from it")


def _rows(buffer: DeviceBuffer) -> DeviceBuffer:
    if not buffer.shape:
        raise InvalidArgumentError("array: the operation needs at least one dimension")
    return buffer
