"""The common base of the communicators of other engines: all collectives, over the few that an engine has.

Before data moves the ranks compare what they are about to do, so that ranks which disagree get an error with every
rank's view, as with the native engine, instead of a wrong result or a hang.
"""

from __future__ import annotations

import abc
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import (
    CollectiveCancelledError,
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    StateError,
    UnsupportedError,
)
from tfcollective._base.timeline import Interval
from tfcollective._base.topology import Placement
from tfcollective._runtime.communicator import Average, Communicator, CommunicatorInfo, Op
from tfcollective._runtime.communicator.values import Call, checked_op, checked_timeout
from tfcollective._runtime.engines.numbers import Array, cut, finished, on_the_wire, wire_op
from tfcollective._runtime.native_library import buffers

if TYPE_CHECKING:
    import numpy.typing as npt


class ExternalCommunicator(Communicator, abc.ABC):
    """A connected world of another engine. A mismatch leaves it alive.

    Args:
        placement: this process's place.
        timeout: how long (s) an operation may wait for the other ranks.
    """

    def __init__(self, placement: Placement, timeout: float) -> None:
        self.placement = placement
        self._timeout = timeout
        self._pid = os.getpid()
        self._closed = False
        self._failure: CollectiveError | None = None
        self._completed = 0
        self._pending = 0
        self._turn = threading.Lock()

    # ---- what an engine brings -------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _reduce(self, array: Array, op: Op, deadline: Deadline) -> Array:
        """The element-wise Sum, Min, Max or Product; uint8, int32, int64, float32 and float64."""

    @abc.abstractmethod
    def _gather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        """Returns every rank's bytes in rank order; their lengths may differ."""

    @abc.abstractmethod
    def _exchange(self, parts: Sequence[bytes], deadline: Deadline) -> list[bytes]:
        """Sends one part to each rank, and gives what came from each."""

    @abc.abstractmethod
    def _send_to_all(self, array: Array, root: int, deadline: Deadline) -> Array:
        """The root's array; uint8 and contiguous."""

    @abc.abstractmethod
    def subset(self, ranks: Sequence[int]) -> ExternalCommunicator:
        """A communicator of these ranks; they all call this, and others do not."""

    def announce(self, ranks: Sequence[int]) -> None:
        """Announces a set; all ranks of the world call it before the members of the set call :meth:`subset`."""

    def dismiss(self, ranks: Sequence[int]) -> None:
        """Forgets a set that has ended; all ranks of the world call it."""

    # ---- collectives -----------------------------------------------------------------------------------------------

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
        _check_stream(stream)
        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        op = checked_op(op)
        reduction = wire_op(op, source.dtype.name)
        wire = on_the_wire(source, prescale, op)
        view = f"allreduce '{name or ''}' {_typed(source)} {op.name.lower()} prescale {prescale} postscale {postscale}"
        with self._operation(view, timeout) as deadline:
            reduced = self._reduce(wire, reduction, deadline)
        result[...] = finished(reduced, source.dtype, postscale, self.size if op == Average else 1)
        return result

    def _reducescatter(self, array: npt.ArrayLike, call: Call) -> Array:
        _check_stream(call.stream)
        source = buffers.as_rows(array, "reducescatter")
        label = f"reducescatter {call.name or ''}"
        whole: Array = self.allreduce(
            source, call.op, prescale=call.prescale, postscale=call.postscale, name=label, timeout=call.timeout
        )
        each, more = divmod(source.shape[0], self.size)
        begin = self.rank * each + min(self.rank, more)
        own: Array = whole[begin : begin + each + (self.rank < more)].copy()
        return own

    def _allgather(self, array: npt.ArrayLike, call: Call) -> Array:
        _check_stream(call.stream)
        source = buffers.as_rows(array)
        with self._operation(f"allgather '{call.name or ''}' {_typed_rows(source)}", call.timeout) as deadline:
            return _joined(self._gather(source.tobytes(), deadline), source)

    def _broadcast(self, array: npt.ArrayLike, out: Array | None, call: Call) -> Array:
        import numpy as np

        _check_stream(call.stream)
        source = buffers.as_input(array, "array")
        result = buffers.result_like(source, out)
        view = f"broadcast '{call.name or ''}' {_typed(source)} from rank {call.root}"
        with self._operation(view, call.timeout) as deadline:
            wire = np.frombuffer(source.tobytes(), np.uint8)
            sent = self._send_to_all(wire, call.root, deadline)
        result[...] = np.frombuffer(sent.tobytes(), source.dtype).reshape(source.shape)
        return result

    def _alltoall(self, array: npt.ArrayLike, splits: npt.ArrayLike | None, call: Call) -> tuple[Array, list[int]]:
        import numpy as np

        _check_stream(call.stream)
        source = buffers.as_rows(array, "alltoall")
        counts = buffers.as_splits(splits, self.size, source.shape[0])
        if counts is None:
            counts = [source.shape[0] // self.size] * self.size
        parts = cut(source, counts)
        with self._operation(f"alltoall '{call.name or ''}' {_typed_rows(source)}", call.timeout) as deadline:
            # Rows of no bytes cannot be counted by their bytes.
            received = self._gather(np.array(counts, np.int64).tobytes(), deadline)
            data = self._exchange(parts, deadline)
        rows = [int(np.frombuffer(text, np.int64)[self.rank]) for text in received]
        result = _joined(data, source) if source[:1].nbytes else buffers.empty((sum(rows), *source.shape[1:]), source)
        return result, rows

    def barrier(self, *, name: str | None = None, timeout: float | None = None) -> None:
        with self._operation(f"barrier '{name or ''}'", timeout):
            return

    def join(self, *, timeout: float | None = None) -> int:
        """Raises UnsupportedError: only the native engine knows how many ranks contribute."""
        raise UnsupportedError("join: over numpy arrays only with the native engine")

    def ticket(self) -> None:
        """Returns None: nothing runs on a GPU here."""
        return

    # ---- state and end ---------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def size(self) -> int:
        return self.placement.size

    @property
    def closed(self) -> bool:
        return self._closed

    def info(self) -> CommunicatorInfo:
        return CommunicatorInfo(
            **asdict(self.placement),
            uses_shared_memory=False,
            broken=self._failure is not None,
            completed=self._completed,
            pending=self._pending,
        )

    def failure(self) -> CollectiveError | None:
        return self._failure

    def close(self, timeout: float = 10.0) -> None:
        self._closed = True

    def start_timeline(self, capacity: int) -> None:
        """Raises an error: this engine has no timeline."""
        raise UnsupportedError("timelines are recorded by the native engine only")

    def stop_timeline(self) -> tuple[list[Interval], int]:
        """Returns no intervals: nothing was recorded."""
        return [], 0

    def forget_plan(self, name: str) -> None:
        """Does nothing: this engine has no plans."""

    def publish(self, process_set_id: int) -> None:
        """Does nothing: the native kernels do not use this engine."""

    def withdraw(self, process_set_id: int) -> None:
        """Does nothing, as :meth:`publish`."""

    # ---- inside ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _operation(self, view: str, timeout: float | None) -> Iterator[Deadline]:
        """Runs one operation at a time, and only when all ranks agree on it; yields the deadline by which it must end.

        An error in the middle ends the communicator, except a mismatch that all ranks see: the next operation of other
            ranks would meet what is left of this one.
        """
        seconds = checked_timeout(timeout) or self._timeout
        deadline = Deadline.after(seconds)
        with self._turn_by(deadline, view, seconds):
            self._check_usable()
            if self._failure is not None:
                raise self._failure
            try:
                self._agree(view, deadline)
                yield deadline
            except CollectiveMismatchError:
                raise
            except CollectiveTimeoutError as error:
                self._failure = CollectiveTimeoutError(f"{view}, after {seconds:g} s: {error}")
                raise self._failure from error
            except CollectiveError as error:
                self._failure = error
                raise
            except BaseException as error:
                self._failure = CollectiveCancelledError(f"{view} was left in the middle: {error!r}")
                raise
            self._completed += 1

    @contextmanager
    def _turn_by(self, deadline: Deadline, view: str, seconds: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=deadline.remaining()):
            raise CollectiveTimeoutError(f"{view} timed out after {seconds:g} s behind this rank's own operations")
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1
            self._turn.release()

    def _agree(self, view: str, deadline: Deadline) -> None:
        """Waits for all ranks; CollectiveMismatchError on all of them if they are not about the same thing."""
        digests = self._gather(hashlib.sha256(view.encode()).digest(), deadline)
        if len(set(digests)) == 1:
            return
        views = [text.decode("utf-8", "replace") for text in self._gather(view.encode(), deadline)]
        text = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(views))
        raise CollectiveMismatchError(f"the ranks disagree: {text}")

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StateError(f"this communicator belongs to process {self._pid} and cannot be used in its fork")
        if self._closed:
            raise StateError("the communicator is closed")


def _check_stream(stream: object) -> None:
    if stream is not None:
        raise UnsupportedError("stream: arrays on GPUs only with the native engine")


def _typed(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _typed_rows(array: Array) -> str:
    """Ranks may bring different numbers of rows."""
    return f"{array.dtype.name} rows of {list(array.shape[1:])}"


def _joined(parts: Sequence[bytes], like: Array) -> Array:
    import numpy as np

    row = int(np.prod(like.shape[1:], dtype=np.int64)) * like.dtype.itemsize
    data = b"".join(parts)
    rows = len(data) // row if row else 0
    joined: Array = np.frombuffer(data, like.dtype).reshape((rows, *like.shape[1:])).copy()
    return joined
