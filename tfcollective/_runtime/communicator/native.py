"""tfcollective's own engine: the communicator over the native library."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfcollective._base.clock import on_thread
from tfcollective._base.errors import CollectiveError, InvalidArgumentError, StateError
from tfcollective._base.timeline import WAIT, Interval
from tfcollective._base.topology import Placement
from tfcollective._runtime.communicator.api import Communicator
from tfcollective._runtime.communicator.cancellation import Cancellation
from tfcollective._runtime.communicator.listener import Listener
from tfcollective._runtime.communicator.values import (
    Average,
    Call,
    Collective,
    CommunicatorInfo,
    CommunicatorOptions,
    Op,
    checked_op,
    checked_timeout,
)
from tfcollective._runtime.native_library import Library, abi, load
from tfcollective._runtime.native_library.calls import PreparedCalls
from tfcollective._runtime.native_library.device_buffers import is_device
from tfcollective._runtime.native_library.library import log_callback

if TYPE_CHECKING:
    import numpy.typing as npt

    from tfcollective._runtime.native_library.buffers import Array, RepeatedAllReduces
    from tfcollective._runtime.native_library.device_calls import DeviceCalls, Ticket

_LOG = logging.getLogger("tfcollective.native")


class NativeCommunicator(Communicator):
    """The native engine's. Made by :meth:`connect` or :meth:`alone`, or by ``tfcollective.init()``."""

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
        self._calls = PreparedCalls(library, handle)
        self._allreduces: RepeatedAllReduces | None = None
        self._info = self._read_info()
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
        cancellation: Cancellation | None = None,
    ) -> NativeCommunicator:
        """Connects to the peers; returns when all of them are there.

        Args:
            listener: this rank's; taken over also on failure. May be None when there is one address.
            rank: this process's place in `addresses`.
            addresses: ``Listener.address`` of every rank, in rank order.
            key: 16 to 64 bytes that all ranks share; connections without it are refused.
            generation: number of the rendezvous round; all ranks must have the same.
            log: takes (level of :mod:`logging`, message) of the native library.
            world_ranks: of a process set: its ranks as ranks of the world, which errors then name.
            cancellation: by which another thread can end the call; of this call alone.

        Raises:
            CollectiveTimeoutError: names the ranks that did not connect in time.
            CollectiveCancelledError: by ``cancellation``.
            CollectiveAbortedError: another rank has given up; says why.
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
            skip_link_probe=not options.link_probe,
            cancellation=None if cancellation is None else cancellation._handle,
        )
        handle = ctypes.c_void_p()
        taken = listener._release() if listener is not None else None
        library.call("tfc_communicator_create", taken, ctypes.byref(native), ctypes.byref(handle))
        return cls(library, handle, callback, options)

    @classmethod
    def alone(cls, *, options: CommunicatorOptions | None = None, library: Library | None = None) -> NativeCommunicator:
        """A world of one rank: no socket, no listener, no key. Every collective works."""
        return cls.connect(None, rank=0, addresses=[""], key=bytes(16), options=options, library=library)

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
        settings = (op, prescale, postscale, name, timeout)
        if self._allreduces is not None and not self._closed and os.getpid() == self._pid and stream is None:
            result = self._allreduces.repeat(array, out, settings)
            if result is not None:
                return result
        call = Call(Collective.ALLREDUCE, name, timeout, stream, op, prescale, postscale)
        if gpu := self._gpu_of(array, stream):
            reduced: Array = gpu.like_input(self._request(call), array, out, stream)
            return reduced
        from tfcollective._runtime.native_library import buffers

        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        source = buffers.apart(source, result)
        self._check_usable()
        span = buffers.span(source, result, source.size)
        prepared = self._calls.prepare(_with_span(self._request(call, source), span))
        prepared.run(buffers.address(source), buffers.address(result))
        if self._allreduces is None:
            self._allreduces = buffers.RepeatedAllReduces(self._calls)
        self._calls.keep((source.dtype, source.shape, settings), prepared)
        return result

    def _broadcast(self, array: npt.ArrayLike, out: Array | None, call: Call) -> Array:
        if gpu := self._gpu_of(array, call.stream):
            value: Array = gpu.like_input(self._request(call), array, out, call.stream)
            return value
        from tfcollective._runtime.native_library import buffers

        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        source = buffers.apart(source, result)
        self._run(self._request(call, source), buffers.span(source, result, source.size))
        return result

    def _reducescatter(self, array: npt.ArrayLike, call: Call) -> Array:
        if gpu := self._gpu_of(array, call.stream):
            mine: Array = gpu.reducescatter(self._request(call), array, call.stream)
            return mine
        from tfcollective._runtime.native_library import buffers

        source = buffers.as_rows(array, "reducescatter")
        rows = source.shape[0] // self.size + (self.rank < source.shape[0] % self.size)
        result = buffers.empty((rows, *source.shape[1:]), source)
        self._run(self._request(call, source), buffers.span(source, result, source.size))
        return result

    def _allgather(self, array: npt.ArrayLike, call: Call) -> Array:
        if gpu := self._gpu_of(array, call.stream):
            gathered: Array = gpu.allgather(self._request(call), array, call.stream)
            return gathered
        from tfcollective._runtime.native_library import buffers

        return self._gather(buffers.as_rows(array), call)[0]

    def _alltoall(self, array: npt.ArrayLike, splits: npt.ArrayLike | None, call: Call) -> tuple[Array, list[int]]:
        if gpu := self._gpu_of(array, call.stream):
            return gpu.alltoall(self._request(call), array, splits, call.stream)
        from tfcollective._runtime.native_library import buffers

        source = buffers.as_rows(array, "alltoall")
        return self._gather(source, call, buffers.as_splits(splits, self.size, source.shape[0]))

    def _gather(self, source: Array, call: Call, splits: list[int] | None = None) -> tuple[Array, list[int]]:
        """Runs what gives as many rows as the ranks send: those, and how many came from each rank."""
        from tfcollective._runtime.native_library import buffers
        from tfcollective._runtime.native_library.results import ProvidedResult

        made: list[Array] = []

        def make(rows: list[int]) -> int:
            made[:] = [buffers.empty((sum(rows), *source.shape[1:]), source)]
            return buffers.address(made[0])

        result = ProvidedResult(self._library, make)
        request = self._request(call, source)
        if splits is not None:
            request.splits = buffers.int64s(splits)
        span = buffers.span(source, None, source.size)
        result.run(lambda: self._run(request, span), request)
        return made[0], result.rows

    def barrier(self, *, name: str | None = None, timeout: float | None = None) -> None:
        self._check_usable()
        key = (name, timeout)
        try:
            call = self._calls.take(key, None)
        except TypeError:  # something that has no hash
            call = None
        if call is None:
            call = self._calls.prepare(self._request(Call(Collective.BARRIER, name, timeout)))
        call.run()
        self._calls.keep(key, call)

    def join(self, *, timeout: float | None = None) -> int:
        self._check_usable()
        last = ctypes.c_int32()
        self._library.call("tfc_join", self._handle, ctypes.c_double(checked_timeout(timeout)), ctypes.byref(last))
        return last.value

    def ticket(self) -> Ticket | None:
        return None if self._device_calls is None else self._device_calls.ticket()

    # ---- place and state ----

    @property
    def rank(self) -> int:
        return self._info.rank

    @property
    def size(self) -> int:
        return self._info.size

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed

    @property
    def options(self) -> CommunicatorOptions:
        """The options with which it was connected."""
        return self._options

    def info(self) -> CommunicatorInfo:
        self._check_process()
        return self._read_info()

    def _read_info(self) -> CommunicatorInfo:
        info = abi.CommunicatorInfo(struct_size=ctypes.sizeof(abi.CommunicatorInfo))
        self._library.call("tfc_communicator_get_info", self._handle, ctypes.byref(info))
        return CommunicatorInfo(
            **{one.name: getattr(info, one.name) for one in fields(Placement)},
            uses_shared_memory=bool(info.uses_shared_memory),
            broken=bool(info.broken),
            completed=info.completed,
            pending=info.pending,
            link_latency=info.link_latency_s,
            link_bandwidth=info.link_bandwidth,
        )

    def failure(self) -> CollectiveError | None:
        if not self.info().broken:
            return None
        try:
            self.barrier(name="failure")  # a dead communicator answers at once with what killed it
        except CollectiveError as error:
            return error
        return None

    # ---- end ----

    def abort(self, cause: str) -> None:
        self._check_process()
        self._library.function("tfc_communicator_abort")(self._handle, cause.encode("utf-8", "replace"))

    def close(self, timeout: float = 10.0) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._library.call("tfc_communicator_shutdown", self._handle, ctypes.c_double(timeout))

    def __enter__(self) -> NativeCommunicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed:
            self.abort(f"{kind.__name__ if kind else 'error'}: {error}")
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<NativeCommunicator rank {self.rank} of {self.size}{state}>"

    # ---- timeline ----

    def start_timeline(self, capacity: int) -> None:
        self._check_process()
        self._library.call("tfc_timeline_start", self._handle, capacity)

    def stop_timeline(self) -> tuple[list[Interval], int]:
        self._check_process()
        intervals: list[Interval] = []
        dropped = ctypes.c_uint64()
        visit = abi.TimelineFn(lambda _user, event: intervals.append(_interval(event.contents)))

        def stop() -> None:
            self._library.call("tfc_timeline_stop", self._handle, visit, None, ctypes.byref(dropped))

        # Not here: on the main thread the handler of a signal may raise in the callback, where the exception is lost.
        on_thread(stop, "tfcollective-timeline").result()
        return intervals, dropped.value

    # ---- TensorFlow ----

    def forget_plan(self, name: str) -> None:
        self._check_process()
        self._library.call("tfc_plan_forget", self._handle, name.encode())

    def publish(self, process_set_id: int) -> None:
        self._devices()  # kernels on GPUs come without passing here
        self._library.call("tfc_process_set_publish", process_set_id, self._handle)

    def withdraw(self, process_set_id: int) -> None:
        self._library.call("tfc_process_set_publish", process_set_id, None)

    # ---- inside ----

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StateError(
                f"this communicator belongs to process {self._pid} and cannot be used in its fork {os.getpid()}"
            )

    def _gpu_of(self, array: object, stream: object) -> DeviceCalls | None:
        """Returns the calls for the device if `array` lies on a GPU, else None."""
        if not is_device(array):
            if stream is not None:
                raise InvalidArgumentError(f"stream: only for arrays on a GPU, got a {type(array).__name__}")
            return None
        self._check_usable()
        return self._devices()

    def _devices(self) -> DeviceCalls:
        """The operations on GPUs; where to look for the driver and NCCL is known then, nothing is loaded yet."""
        if self._device_calls is None:
            from tfcollective._runtime.native_library.device_calls import DeviceCalls, DeviceSearch

            given = self._options
            search = DeviceSearch(nccl=given.nccl, cuda_driver=given.cuda_driver, share=given.share_gpus)
            self._device_calls = DeviceCalls(self, self._library, self._handle, self.rank, self.size, search)
        return self._device_calls

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise StateError("the communicator is closed")

    def _request(self, call: Call, array: Array | None = None) -> abi.Request:
        request = abi.Request(
            struct_size=ctypes.sizeof(abi.Request),
            collective=call.collective,
            op=checked_op(call.op),
            root=call.root,
            prescale=call.prescale,
            postscale=call.postscale,
            timeout_s=checked_timeout(call.timeout),
            name=(call.name or call.collective.name.lower()).encode(),
        )
        if array is not None:
            from tfcollective._runtime.native_library import buffers

            request.dtype = buffers.dtype_of(array, "array")
            request.shape = buffers.int64s(array.shape)
            request.ndim = array.ndim
        return request

    def _run(self, request: abi.Request, span: abi.Span) -> None:
        self._check_usable()
        self._library.call("tfc_run", self._handle, ctypes.byref(_with_span(request, span)))


def _with_span(request: abi.Request, span: abi.Span) -> abi.Request:
    request.spans = ctypes.pointer(span)
    request.num_spans = 1
    return request


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


def _release(library: Library, handle: ctypes.c_void_p, pid: int, keep_alive: object) -> None:
    """Drops the native reference, unless this is a fork: the threads that the release would join are not here."""
    del keep_alive  # the callbacks live as long as the finalizer holds them
    if os.getpid() == pid:
        library.function("tfc_communicator_release")(handle)
        handle.value = None  # what the garbage collector ends after the communicator must not use it
