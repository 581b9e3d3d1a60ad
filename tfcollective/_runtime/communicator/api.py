"""The interface of communicators, whichever engine moves their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tfcollective._base.errors import CollectiveError, InvalidArgumentError
from tfcollective._base.timeline import Interval
from tfcollective._runtime.communicator.values import Average, Call, Collective, CommunicatorInfo, Op

if TYPE_CHECKING:
    import numpy.typing as npt

    from tfcollective._runtime.native_library.buffers import Array
    from tfcollective._runtime.native_library.device_calls import Ticket


class Communicator(Protocol):
    """A connected world of `size` ranks. ``tfcollective.init()`` makes it; the engine that moves the data
    implements it.

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

    @property
    def rank(self) -> int:
        """The rank of this process, from 0 to size - 1."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""

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
            prescale: factor applied to the inputs.
            postscale: factor applied to the result.
            out: where the result goes; may be `array` itself. A new array if None.
            name: shown in messages.
            timeout: seconds; the communicator's default if None.
            stream: for an array on a GPU: the CUDA stream that the operation follows.

        Returns:
            An array of the shape and dtype of `array` (`out` if given).
        """

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
        call = Call(Collective.REDUCESCATTER, name, timeout, stream, op, prescale, postscale)
        return self._reducescatter(array, call)

    def allgather(
        self, array: npt.ArrayLike, *, name: str | None = None, timeout: float | None = None, stream: Any = None
    ) -> Array:
        """Puts the ranks' arrays one after the other, in rank order.

        Args:
            array: shape [n_r, ...]; n_r may differ from rank to rank, the rest may not. A scalar counts as one row.

        Returns:
            Shape [sum of all n_r, ...].
        """
        return self._allgather(array, Call(Collective.ALLGATHER, name, timeout, stream))

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
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"root: expected a rank below {self.size}, got {root}")
        return self._broadcast(array, out, Call(Collective.BROADCAST, name, timeout, stream, root=root))

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
        return self._alltoall(array, splits, Call(Collective.ALLTOALL, name, timeout, stream))

    def barrier(self, *, name: str | None = None, timeout: float | None = None) -> None:
        """Returns when all ranks have called it."""

    def join(self, *, timeout: float | None = None) -> int:
        """Tells the others that this rank has no more data: they continue without it, and it waits until all have
        joined.

        Meanwhile it takes part in their all-reduces with zeros; averages are of the ranks that still contribute (the
        first one without a rank is corrected after the fact and may differ from it in the last bit). Other operations
        raise CollectiveMismatchError on all ranks that call them, and end the communicator.

        Args:
            timeout: seconds for which nothing may be asked of this rank; the communicator's default if None.

        Returns:
            The rank that joined last: its data lasted longest, so its state is the newest.
        """

    def ticket(self) -> Ticket | None:
        """Returns a ticket to wait on the host for this rank's last operation on its GPU; None if there was none."""

    # ---- state and end ----

    def info(self) -> CommunicatorInfo:
        """A snapshot of place and state. Works on a broken or closed communicator too."""

    def failure(self) -> CollectiveError | None:
        """The error that ended the communicator; None while it works."""

    def abort(self, cause: str) -> None:
        """Tells all ranks to stop: their operations end with CollectiveAbortedError and `cause`, those of this rank
        with CollectiveCancelledError. Never blocks; the first abort wins."""

    def close(self, timeout: float = 10.0) -> None:
        """Leaves the world gracefully. A peer that still waits for this rank gets PeerLostError. Rank 0 waits up to
        `timeout` seconds for the others to leave. A second call does nothing."""

    def start_timeline(self, capacity: int) -> None:
        """Records this rank's last `capacity` operations from now on; see :meth:`stop_timeline`."""

    def stop_timeline(self) -> tuple[list[Interval], int]:
        """Ends the recording: what was recorded, oldest first, and how many older operations were not kept."""

    def forget_plan(self, name: str) -> None:
        """Releases this process's use of the bucket plan: its memory is freed when no rank uses it. Local."""

    # ---- what an engine does for the collectives above ----

    def _reducescatter(self, array: npt.ArrayLike, call: Call) -> Array: ...

    def _allgather(self, array: npt.ArrayLike, call: Call) -> Array: ...

    def _broadcast(self, array: npt.ArrayLike, out: Array | None, call: Call) -> Array: ...

    def _alltoall(self, array: npt.ArrayLike, splits: npt.ArrayLike | None, call: Call) -> tuple[Array, list[int]]: ...

    # ---- TensorFlow ----

    def publish(self, process_set_id: int) -> None:
        """Lets TensorFlow's kernels find this communicator under the number of its process set."""

    def withdraw(self, process_set_id: int) -> None:
        """Leaves the number of a process set without a communicator."""
