"""The collectives of a communicator: arguments to a native request, its result to an array."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from tfcollective._native import Library, abi
from tfcollective._native.device_buffers import is_device
from tfcollective.communicator.values import Average, CommunicatorInfo, CommunicatorOptions, Op, Sum
from tfcollective.errors import InvalidArgumentError, StateError

if TYPE_CHECKING:
    import numpy.typing as npt

    from tfcollective._native.buffers import Array
    from tfcollective._native.calls import AllReduceCalls
    from tfcollective._native.device_calls import DeviceCalls, Ticket

__all__ = ["Collectives"]


class Collectives:
    """What :class:`~tfcollective.Communicator` does with arrays; its place and its life stand there."""

    _info: CommunicatorInfo

    def __init__(self, library: Library, handle: ctypes.c_void_p, options: CommunicatorOptions) -> None:
        self._library = library
        self._handle = handle
        self._pid = os.getpid()
        self._closed = False
        self._options = options
        self._device_calls: DeviceCalls | None = None
        self._allreduces: AllReduceCalls | None = None

    @property
    def rank(self) -> int:
        """This process's rank, from 0 to size - 1."""
        return self._info.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._info.size

    def allreduce(
        self,
        array: npt.ArrayLike,
        op: Op = Average,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Array:
        """Combines the ranks' arrays element by element; every rank gets the same bits.

        Args:
            array: any shape, the same on all ranks.
            op: Average, Sum, Min, Max or Product.
            prescale: inputs are multiplied by this ...
            postscale: ... and results by this.
            out: where the result goes; may be `array` itself. A new array if None.
            name: shown in messages.
            timeout: seconds; the communicator's default if None.
            stream: for an array on a GPU: the CUDA stream that the operation follows.

        Returns:
            An array of the shape and dtype of `array` (`out` if given).
        """
        repeated = self._repeated()
        settings = (op, prescale, postscale, name, timeout)
        usable = not self._closed and os.getpid() == self._pid and stream is None
        result = repeated.repeat(array, out, settings) if usable else None
        if result is not None:
            return result
        if gpu := self._gpu_of(array, stream):
            request = self._request(abi.Collective.ALLREDUCE, None, name, timeout, op=op)
            request.prescale, request.postscale = prescale, postscale
            reduced: Array = gpu.like_input(request, array, out, stream)
            return reduced
        from tfcollective._native import buffers

        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        source = buffers.apart(source, result)
        request = self._request(abi.Collective.ALLREDUCE, source, name, timeout, op=op)
        request.prescale, request.postscale = prescale, postscale
        span = buffers.span(source, result, source.size)
        self._run(request, span)
        repeated.remember(source, settings, request, span)
        return result

    def reducescatter(
        self,
        array: npt.ArrayLike,
        op: Op = Average,
        *,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Array:
        """Combines the ranks' arrays as :meth:`allreduce` does and gives each rank its rows of the result.

        Args:
            array: shape [n, ...], the same on all ranks.

        Returns:
            Shape [n // size, ...], with one row more on the first n % size ranks.
        """
        if gpu := self._gpu_of(array, stream):
            request = self._request(abi.Collective.REDUCESCATTER, None, name, timeout, op=op)
            request.prescale, request.postscale = prescale, postscale
            mine: Array = gpu.reducescatter(request, array, stream)
            return mine
        from tfcollective._native import buffers

        source = buffers.as_input(array, "array")
        if source.ndim == 0:
            raise InvalidArgumentError("array: reducescatter needs at least one dimension")
        rows = source.shape[0] // self.size + (self.rank < source.shape[0] % self.size)
        result = buffers.empty((rows, *source.shape[1:]), source)
        request = self._request(abi.Collective.REDUCESCATTER, source, name, timeout, op=op)
        request.prescale, request.postscale = prescale, postscale
        self._run(request, buffers.span(source, result, source.size))
        return result

    def allgather(
        self, array: npt.ArrayLike, *, name: str | None = None, timeout: float | None = None, stream: Any = None
    ) -> Array:
        """Puts the ranks' arrays one after the other, in rank order.

        Args:
            array: shape [n_r, ...]; n_r may differ from rank to rank, the rest may not. A scalar counts as one row.

        Returns:
            Shape [sum of all n_r, ...].
        """
        if gpu := self._gpu_of(array, stream):
            request = self._request(abi.Collective.ALLGATHER, None, name, timeout)
            gathered: Array = gpu.allgather(request, array, stream)
            return gathered
        from tfcollective._native import buffers

        source = buffers.as_input(array, "array")
        source = source.reshape(1) if source.ndim == 0 else source
        result = buffers.ResultBuffer(source.dtype, source.shape[1:])
        request = self._request(abi.Collective.ALLGATHER, source, name, timeout)
        request.allocate = result.callback
        self._run(request, buffers.span(source, None, source.size))
        return result.result()

    def broadcast(
        self,
        array: npt.ArrayLike,
        root: int = 0,
        *,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Array:
        """Gives every rank the array of rank `root`.

        Args:
            array: any shape, the same on all ranks; only its values on `root` matter.
            out: where the result goes; may be `array` itself.
        """
        from tfcollective._native import buffers

        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root: expected a rank below {self.size}, got {root}")
        if gpu := self._gpu_of(array, stream):
            request = self._request(abi.Collective.BROADCAST, None, name, timeout)
            request.root = root
            value: Array = gpu.like_input(request, array, out, stream)
            return value
        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        source = buffers.apart(source, result)
        request = self._request(abi.Collective.BROADCAST, source, name, timeout)
        request.root = root
        self._run(request, buffers.span(source, result, source.size))
        return result

    def alltoall(
        self,
        array: npt.ArrayLike,
        splits: npt.ArrayLike | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> tuple[Array, list[int]]:
        """Sends rows to every rank and receives rows from every rank.

        Args:
            array: shape [n, ...]; the first ``splits[0]`` rows go to rank 0, the next to rank 1, and so on.
            splits: one count a rank, n in all; equal parts if None (n must then be a multiple of size).

        Returns:
            The received rows in rank order, and how many came from each rank.
        """
        if gpu := self._gpu_of(array, stream):
            return gpu.alltoall(self._request(abi.Collective.ALLTOALL, None, name, timeout), array, splits, stream)
        from tfcollective._native import buffers

        source = buffers.as_input(array, "array")
        if source.ndim == 0:
            raise InvalidArgumentError("array: alltoall needs at least one dimension")
        counts = buffers.as_splits(splits, self.size, source.shape[0])
        result = buffers.ResultBuffer(source.dtype, source.shape[1:])
        request = self._request(abi.Collective.ALLTOALL, source, name, timeout)
        request.allocate = result.callback
        if counts is not None:
            request.splits = buffers.int64s(counts)
        self._run(request, buffers.span(source, None, source.size))
        return result.result(), result.rows

    def barrier(self, *, name: str | None = None, timeout: float | None = None) -> None:
        """Returns when all ranks have called it."""
        request = self._request(abi.Collective.BARRIER, None, name, timeout)
        self._run(request, None)

    def join(self, *, timeout: float | None = None) -> int:
        """This rank has no more data: the others go on without it, and it waits until all have joined.

        Meanwhile it takes part in their all-reduces with zeros; averages are of the ranks that still contribute (the
        first one without a rank is corrected after the fact and may differ from it in the last bit). Other operations
        raise CollectiveMismatchError on all ranks that call them, and end the communicator.

        Args:
            timeout: seconds for which nothing may be asked of this rank; the communicator's default if None.

        Returns:
            The rank that joined last: its data lasted longest, so its state is the newest.
        """
        self._check_usable()
        last = ctypes.c_int32()
        self._library.call("tfc_join", self._handle, ctypes.c_double(_checked_timeout(timeout)), ctypes.byref(last))
        return last.value

    def ticket(self) -> Ticket | None:
        """For waiting on the host for this rank's last operation on its GPU; None if there was none."""
        return None if self._device_calls is None else self._device_calls.ticket()

    # ---- inside ----

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StateError(
                f"this communicator belongs to process {self._pid} and cannot be used in its fork {os.getpid()}"
            )

    def _gpu_of(self, array: object, stream: object) -> DeviceCalls | None:
        """What carries the operation out if `array` lies on a GPU."""
        if not is_device(array):
            if stream is not None:
                raise InvalidArgumentError(f"stream: only for arrays on a GPU, got a {type(array).__name__}")
            return None
        self._check_usable()
        return self._devices()

    def _devices(self) -> DeviceCalls:
        """The operations on GPUs, told where the driver and NCCL are to be looked for; nothing is loaded yet."""
        if self._device_calls is None:
            from tfcollective._native.device_calls import DeviceCalls, DeviceSearch

            given = self._options
            search = DeviceSearch(nccl=given.nccl, cuda_driver=given.cuda_driver, share=given.share_gpus)
            self._device_calls = DeviceCalls(self, self._library, self._handle, self.rank, self.size, search)
        return self._device_calls

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise StateError("the communicator is closed")

    def _request(
        self, collective: abi.Collective, array: Array | None, name: str | None, timeout: float | None, op: Op = Sum
    ) -> abi.Request:
        request = abi.Request(
            struct_size=ctypes.sizeof(abi.Request),
            collective=collective,
            op=_checked_op(op),
            prescale=1.0,
            postscale=1.0,
            timeout_s=_checked_timeout(timeout),
            name=(name or collective.name.lower()).encode(),
        )
        if array is not None:
            from tfcollective._native import buffers

            request.dtype = buffers.dtype_of(array, "array")
            request.shape = buffers.int64s(array.shape)
            request.ndim = array.ndim
        return request

    def _repeated(self) -> AllReduceCalls:
        if self._allreduces is None:
            from tfcollective._native.calls import AllReduceCalls

            self._allreduces = AllReduceCalls(self._library, self._handle)
        return self._allreduces

    def _run(self, request: abi.Request, span: abi.Span | None) -> None:
        self._check_usable()
        if span is not None:
            request.spans = ctypes.pointer(span)
            request.num_spans = 1
        self._library.call("tfc_run", self._handle, ctypes.byref(request))


def _checked_timeout(timeout: float | None) -> float:
    """Seconds as the library takes them: 0 is its default."""
    if timeout is not None and timeout <= 0:
        raise InvalidArgumentError(f"timeout: expected seconds above 0, got {timeout}")
    return timeout or 0.0


def _checked_op(op: Op | int) -> Op:
    try:
        return Op(op)
    except ValueError:
        names = ", ".join(member.name.capitalize() for member in Op)
        raise InvalidArgumentError(f"op: expected one of {names}, got {op!r}") from None
