"""A connected world over numpy arrays: the smallest useful part of tfcollective.

>>> import numpy as np, tfcollective
>>> tfcollective.init()
>>> world = tfcollective.get_communicator()
>>> world.allreduce(np.ones(3), op=tfcollective.Sum)      # on 2 processes: array([2., 2., 2.])
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfcollective._native import Library, abi, load
from tfcollective._native.device_buffers import is_device
from tfcollective._native.library import log_callback
from tfcollective.errors import CollectiveError, InvalidArgumentError, StateError
from tfcollective.timeline import WAIT, Interval

if TYPE_CHECKING:
    import numpy.typing as npt

    from tfcollective._native.buffers import Array
    from tfcollective._native.calls import AllReduceCalls
    from tfcollective._native.device_calls import DeviceCalls, Ticket

__all__ = [
    "Average",
    "Communicator",
    "CommunicatorInfo",
    "CommunicatorOptions",
    "Listener",
    "Max",
    "Min",
    "Op",
    "Product",
    "Sum",
]

Op = abi.Op
Average = Op.AVERAGE
Sum = Op.SUM
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT

_LOG = logging.getLogger("tfcollective.native")


@dataclass(frozen=True)
class CommunicatorOptions:
    """How a communicator connects and waits. Times are seconds.

    Attributes:
        connect_timeout: until every peer must be connected.
        op_timeout: of an operation that gives no timeout of its own.
        stall_warning: log a warning when an operation has waited this long; 0 for none.
        transport: "auto" (shared memory inside a node, TCP between nodes) or "tcp".
        spin_us: spin this many microseconds before sleeping; -1 chooses by cores and local ranks.
        nccl: the NCCL library to use; by default a loaded copy, one of the packages nvidia-nccl-*, or the loader's.
        cuda_driver: the CUDA driver to use instead of libcuda.so.1.
        share_gpus: several ranks may use one GPU.
    """

    connect_timeout: float = 60.0
    op_timeout: float = 300.0
    stall_warning: float = 60.0
    transport: str = "auto"
    spin_us: int = -1
    nccl: str | None = None
    cuda_driver: str | None = None
    share_gpus: bool = False


@dataclass(frozen=True)
class CommunicatorInfo:
    """A snapshot of a communicator's place and state.

    `completed` and `pending` count operations of this rank; `broken` is true once an error has ended it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    uses_shared_memory: bool
    broken: bool
    completed: int
    pending: int


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


class Communicator:
    """A connected world of `size` ranks. Made by :meth:`connect`, or by ``tfcollective.init()``.

    All ranks must call the same collectives in the same order. Calls block until the result is there, release the
    GIL, and may come from any thread; those of several threads run one after the other. Arrays may have any
    number of dimensions and elements (none included) of float16, bfloat16 (with ``ml_dtypes``), float32, float64,
    int8 to int64, uint8 to uint64 or bool; what is not C-contiguous is copied. Inputs are never changed unless given
    as `out` too.

    Arrays on a GPU (CuPy, PyTorch, Numba, JAX: anything with ``__cuda_array_interface__`` or DLPack) are reduced there
    by NCCL, on all ranks or on none. They must be C-contiguous. The call returns when the GPU has the operation, not
    when it is complete: it follows what `stream` (by default the one that the array says, or its library's current
    one) holds so far, and what that stream is given afterwards follows it. :meth:`ticket` waits on the host. Results
    are arrays of CuPy or PyTorch where the input is one, else a ``DeviceArray``, which those take without a copy.

    Every collective raises: InvalidArgumentError (bad argument here), CollectiveMismatchError (ranks disagree),
    CollectiveTimeoutError, PeerLostError (a rank ended), CollectiveAbortedError (a rank asked all to stop),
    UnsupportedError, StateError (closed). After any of them but the first and the last the communicator is dead.
    """

    def __init__(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        keep_alive: object,
        options: CommunicatorOptions | None = None,
    ) -> None:
        self._library = library
        self._handle = handle
        self._pid = os.getpid()
        self._closed = False
        self._options = options or CommunicatorOptions()
        self._device_calls: DeviceCalls | None = None
        self._info = self._read_info()
        self._allreduces: AllReduceCalls | None = None
        self._finalizer = weakref.finalize(self, _release, library, handle, self._pid, keep_alive)
        self._finalizer.atexit = False

    @classmethod
    def connect(
        cls,
        listener: Listener | None,
        *,
        rank: int,
        addresses: Sequence[str],
        key: bytes,
        generation: int = 0,
        options: CommunicatorOptions | None = None,
        library: Library | None = None,
        log: Callable[[int, str], None] | None = None,
        world_ranks: Sequence[int] | None = None,
    ) -> Communicator:
        """Connects to the peers; returns when all of them are there.

        Args:
            listener: this rank's; taken over also on failure. May be None when there is one address.
            rank: this process's place in `addresses`.
            addresses: ``Listener.address`` of every rank, in rank order.
            key: 16 to 64 bytes that all ranks share; connections without it are refused.
            generation: number of the rendezvous round; all ranks must have the same.
            log: takes (level of :mod:`logging`, message) of the native library.
            world_ranks: of a process set: its ranks as ranks of the world, which errors then name.

        Raises:
            CollectiveTimeoutError: names the ranks that did not connect in time.
            ProtocolError: another key, version or generation.
        """
        options = options or CommunicatorOptions()
        try:
            transport = abi.Transport[options.transport.upper()]
        except KeyError:
            known = " or ".join(member.name.lower() for member in abi.Transport)
            raise InvalidArgumentError(f"transport: expected {known}, got {options.transport!r}") from None
        library = library or load()
        callback = log_callback(log or _LOG.log)
        native = abi.CommunicatorOptions(
            struct_size=ctypes.sizeof(abi.CommunicatorOptions),
            rank=rank,
            size=len(addresses),
            addresses=(ctypes.c_char_p * len(addresses))(*(a.encode() for a in addresses)),
            key=(ctypes.c_uint8 * len(key)).from_buffer_copy(key),
            key_size=len(key),
            generation=generation,
            connect_timeout_s=options.connect_timeout,
            op_timeout_s=options.op_timeout,
            stall_warning_s=options.stall_warning,
            transport=transport,
            spin_us=options.spin_us,
            log=callback,
            world_ranks=None if world_ranks is None else (ctypes.c_int32 * len(world_ranks))(*world_ranks),
        )
        handle = ctypes.c_void_p()
        taken = listener._release() if listener is not None else None
        library.call("tfc_communicator_create", taken, ctypes.byref(native), ctypes.byref(handle))
        return cls(library, handle, callback, options)

    @classmethod
    def alone(cls, *, options: CommunicatorOptions | None = None, library: Library | None = None) -> Communicator:
        """A world of one rank: no socket, no listener, no key. Every collective works."""
        return cls.connect(None, rank=0, addresses=[""], key=bytes(16), options=options, library=library)

    # ---- place and state ----

    @property
    def rank(self) -> int:
        """This process's rank, from 0 to size - 1."""
        return self._info.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._info.size

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed

    def info(self) -> CommunicatorInfo:
        """A snapshot of place and state. Works on a broken or closed communicator too."""
        self._check_process()
        return self._read_info()

    def _read_info(self) -> CommunicatorInfo:
        info = abi.CommunicatorInfo(struct_size=ctypes.sizeof(abi.CommunicatorInfo))
        self._library.call("tfc_communicator_get_info", self._handle, ctypes.byref(info))
        return CommunicatorInfo(
            rank=info.rank,
            size=info.size,
            local_rank=info.local_rank,
            local_size=info.local_size,
            cross_rank=info.cross_rank,
            cross_size=info.cross_size,
            uses_shared_memory=bool(info.uses_shared_memory),
            broken=bool(info.broken),
            completed=info.completed,
            pending=info.pending,
        )

    # ---- collectives ----

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

    def failure(self) -> CollectiveError | None:
        """What ended the communicator; None while it lives."""
        if not self.info().broken:
            return None
        try:
            self.barrier(name="failure")  # a dead communicator answers at once with what killed it
        except CollectiveError as error:
            return error
        return None

    # ---- end ----

    def abort(self, cause: str) -> None:
        """Tells all ranks to stop: their operations end with CollectiveAbortedError and `cause`, those of this rank
        with CollectiveCancelledError. Never blocks; the first abort wins."""
        self._check_process()
        self._library.function("tfc_communicator_abort")(self._handle, cause.encode("utf-8", "replace"))

    def close(self, timeout: float = 10.0) -> None:
        """Leaves the world in order. A peer that still waits for this rank gets PeerLostError. Rank 0 waits up to
        `timeout` seconds for the others to leave. A second call does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._library.call("tfc_communicator_shutdown", self._handle, ctypes.c_double(timeout))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed:
            self.abort(f"{kind.__name__ if kind else 'error'}: {error}")
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<Communicator rank {self.rank} of {self.size}{state}>"

    # ---- timeline ----

    def start_timeline(self, capacity: int) -> None:
        """Records this rank's last `capacity` operations from now on; see :meth:`stop_timeline`."""
        self._check_process()
        self._library.call("tfc_timeline_start", self._handle, capacity)

    def stop_timeline(self) -> tuple[list[Interval], int]:
        """Ends the recording: what was recorded, oldest first, and how many older operations were not kept."""
        self._check_process()
        intervals: list[Interval] = []
        dropped = ctypes.c_uint64()
        visit = abi.TimelineFn(lambda _user, event: intervals.append(_interval(event.contents)))
        self._library.call("tfc_timeline_stop", self._handle, visit, None, ctypes.byref(dropped))
        return intervals, dropped.value

    # ---- inside ----

    def _set_as_world(self, world: int) -> None:
        """Makes this the world that TensorFlow's kernels find under the number `world`."""
        self._library.call("tfc_world_set", world, self._handle)

    def _clear_world(self, world: int) -> None:
        """Leaves the number `world` without a communicator."""
        self._library.call("tfc_world_set", world, None)

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


def _interval(event: abi.TimelineEvent) -> Interval:
    return Interval(
        collective=WAIT if event.collective < 0 else abi.Collective(event.collective).name.lower(),
        channel=event.channel,
        sequence=event.sequence,
        nbytes=event.bytes,
        submitted=event.submitted_ns,
        began=event.began_ns,
        ended=event.ended_ns,
        name=event.name.decode(errors="replace"),
    )


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


def _release(library: Library, handle: ctypes.c_void_p, pid: int, keep_alive: object) -> None:
    """Drops the native reference, unless this is a fork: the threads that the release would join are not here."""
    del keep_alive  # the callbacks live as long as the finalizer holds them
    if os.getpid() == pid:
        library.function("tfc_communicator_release")(handle)
