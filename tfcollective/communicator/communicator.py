"""A connected world: its place, its life and its timeline."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

from tfcollective._native import Library, abi, load
from tfcollective._native.library import log_callback
from tfcollective.communicator.collectives import Collectives
from tfcollective.communicator.listener import Listener
from tfcollective.communicator.values import CommunicatorInfo, CommunicatorOptions
from tfcollective.errors import CollectiveError, InvalidArgumentError
from tfcollective.timeline import WAIT, Interval

__all__ = ["Communicator"]

_LOG = logging.getLogger("tfcollective.native")


class Communicator(Collectives):
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
    CollectiveCancelledError (this rank asked itself to), UnsupportedError, StateError (closed), TransportError,
    ResourceExhaustedError, DeviceError, ProtocolError. What this rank notices before anything is sent
    (InvalidArgumentError, UnsupportedError, StateError) leaves the communicator as it was; after any other it is dead.
    """

    def __init__(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        keep_alive: object,
        options: CommunicatorOptions | None = None,
    ) -> None:
        super().__init__(library, handle, options or CommunicatorOptions())
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
            skip_link_probe=not options.link_probe,
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
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed

    @property
    def options(self) -> CommunicatorOptions:
        """How it was connected."""
        return self._options

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
            link_latency=info.link_latency_s,
            link_bandwidth=info.link_bandwidth,
        )

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

    def forget_plan(self, name: str) -> None:
        """This process does not need the bucket plan any longer: its memory is given back when no rank does. Local."""
        self._check_process()
        self._library.call("tfc_plan_forget", self._handle, name.encode())

    def _set_as_world(self, world: int) -> None:
        """Makes this the world that TensorFlow's kernels find under the number `world`."""
        self._devices()  # its kernels on GPUs come without passing here
        self._library.call("tfc_world_set", world, self._handle)

    def _clear_world(self, world: int) -> None:
        """Leaves the number `world` without a communicator."""
        self._library.call("tfc_world_set", world, None)


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
