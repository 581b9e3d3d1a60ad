"""The engine of the vendor's MPI, through mpi4py: rank, size and nodes are MPI's, and so is the way that data takes.

Every operation is a non-blocking one of MPI that is waited for with a deadline. MPI itself ends the job when a process
dies.
"""

from __future__ import annotations

import atexit
import itertools
import time
from collections.abc import Sequence
from typing import Any

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import CollectiveTimeoutError, ConfigError, TransportError
from tfcollective._base.log import get_logger
from tfcollective._base.topology import Placement
from tfcollective._runtime.communicator import Max, Min, Op, Product, Sum
from tfcollective._runtime.engines.base import ExternalCommunicator
from tfcollective._runtime.engines.numbers import Array, cut

_LOG = get_logger(__name__)
_LONGEST_PAUSE_S = 1e-3
_ELEMENTS = 1 << 30  # MPI 3 counts with 32 bits
_RENDEZVOUS = 7  # the tag of messages that only say that a rank is there
# Requests that were not waited for to their end, with their buffers, which MPI may read and write as long as it lives:
# in their place in memory there must be nothing else.
_left_behind: list[Any] = []
_NAMES = {Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}


class MpiCommunicator(ExternalCommunicator):
    """MPI's world, or a part of it.

    Args:
        comm: of mpi4py; this communicator's own.
        placement: this process's place.
        timeout: how long (s) an operation may wait for the other ranks.
    """

    def __init__(self, comm: Any, placement: Placement, timeout: float) -> None:
        super().__init__(placement, timeout)
        self._comm = comm

    @classmethod
    def open(cls, timeout: float) -> MpiCommunicator:
        """The world of all processes that MPI's launcher has started. ConfigError without mpi4py."""
        deadline = Deadline.after(timeout)
        comm, request = _mpi().COMM_WORLD.Idup()  # what the program itself sends over the world does not meet ours
        _wait(request, "MPI_Comm_idup of the world", deadline)
        _wait(comm.Ibarrier(), "MPI_Ibarrier of the world", deadline)
        return cls(comm, _placement(comm), timeout)

    def subset(self, ranks: Sequence[int]) -> MpiCommunicator:
        self._rendezvous(ranks, Deadline.after(self._timeout))
        comm = self._comm.Create_group(self._comm.group.Incl(list(ranks)))
        place = list(ranks).index(self.rank)
        return MpiCommunicator(comm, Placement(place, len(ranks), place, len(ranks), 0, 1), self._timeout)

    def abort(self, cause: str) -> None:
        """Ends all processes of the job: MPI knows no other way."""
        if self.size > 1 and not self._closed:
            _LOG.error("ending all processes: %s", cause)
            atexit.register(self._comm.Abort, 1)  # not at once: what led here is still to be shown

    def close(self, timeout: float = 10.0) -> None:
        """Closes the communicator. MPI itself stays until the process ends."""
        self._closed = True

    def _reduce(self, array: Array, op: Op, deadline: Deadline) -> Array:
        import numpy as np

        result = np.empty_like(array)
        flat, out = array.reshape(-1), result.reshape(-1)
        reduction = getattr(_mpi(), _NAMES[op])
        for begin in range(0, flat.size, _ELEMENTS):
            piece = slice(begin, begin + _ELEMENTS)
            request = self._comm.Iallreduce(flat[piece], out[piece], reduction)
            _wait(request, "allreduce", deadline, flat, out)
        return result

    def _gather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        import numpy as np

        sizes = np.empty(self.size, np.int64)
        mine = np.array([len(data)], np.int64)
        _wait(self._comm.Iallgather(mine, sizes), "gathering", deadline, mine, sizes)
        counts = [int(size) for size in sizes]
        _check_room(sum(counts))
        everything = np.empty(sum(counts), np.uint8)
        sent = np.frombuffer(data, np.uint8)
        request = self._comm.Iallgatherv(sent, [everything, counts, _begins(counts), _mpi().BYTE])
        _wait(request, "gathering", deadline, sent, everything)
        return cut(everything, counts)

    def _exchange(self, parts: Sequence[bytes], deadline: Deadline) -> list[bytes]:
        import numpy as np

        counts = [len(part) for part in parts]
        received = np.empty(self.size, np.int64)
        mine = np.array(counts, np.int64)
        _wait(self._comm.Ialltoall(mine, received), "alltoall", deadline, mine, received)
        wanted = [int(size) for size in received]
        _check_room(self._largest(max(sum(counts), sum(wanted)), deadline))
        sent = np.frombuffer(b"".join(parts), np.uint8)
        everything = np.empty(sum(wanted), np.uint8)
        byte = _mpi().BYTE
        request = self._comm.Ialltoallv(
            [sent, counts, _begins(counts), byte], [everything, wanted, _begins(wanted), byte]
        )
        _wait(request, "alltoall", deadline, sent, everything)
        return cut(everything, wanted)

    def _send_to_all(self, array: Array, root: int, deadline: Deadline) -> Array:
        buffer: Array = array.copy()
        for begin in range(0, buffer.size, _ELEMENTS):
            _wait(self._comm.Ibcast(buffer[begin : begin + _ELEMENTS], root), "broadcast", deadline, buffer)
        return buffer

    def _rendezvous(self, ranks: Sequence[int], deadline: Deadline) -> None:
        """Waits until all of them are here: what makes a communicator of a group has no deadline."""
        others = [rank for rank in ranks if rank != self.rank]
        sent, received = b"x", bytearray(len(ranks))
        places = memoryview(received)
        requests = [self._comm.Irecv(places[i : i + 1], rank, _RENDEZVOUS) for i, rank in enumerate(others)]
        requests += [self._comm.Isend(sent, rank, _RENDEZVOUS) for rank in others]
        for request in requests:
            _wait(request, f"rendezvous of the ranks {', '.join(map(str, ranks))}", deadline, sent, received)

    def _largest(self, value: int, deadline: Deadline) -> int:
        import numpy as np

        mine, found = np.array([value], np.int64), np.empty(1, np.int64)
        _wait(self._comm.Iallreduce(mine, found, _mpi().MAX), "alltoall", deadline, mine, found)
        return int(found[0])


def _wait(request: Any, what: str, deadline: Deadline, *buffers: object) -> None:
    """Waits for a request that reads and writes ``buffers``, by the deadline."""
    pause = 1e-6
    try:
        while not request.Test():
            if deadline.expired():
                raise CollectiveTimeoutError(f"{what} timed out: MPI does not say which rank is missing")
            time.sleep(pause)  # MPI knows no wait with a deadline
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    except BaseException as error:
        _left_behind.append((request, buffers))
        if isinstance(error, _mpi().Exception):
            raise TransportError(f"{what}: {error}") from error
        raise


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"the engine mpi needs mpi4py, which does not load here ({error}): pip install 'tfcollective[mpi]', "
            "built against the MPI whose mpirun starts the processes"
        ) from error
    return MPI


def _placement(comm: Any) -> Placement:
    local = comm.Split_type(_mpi().COMM_TYPE_SHARED, comm.rank)
    cross = comm.Split(local.rank, comm.rank)
    try:
        return Placement(comm.rank, comm.size, local.rank, local.size, cross.rank, cross.size)
    finally:
        cross.Free()
        local.Free()


def _begins(counts: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(counts)][:-1]


def _check_room(size: int) -> None:
    if size >= 1 << 31:
        raise TransportError(f"MPI counts with 32 bits: {size} bytes cannot be gathered at once; use the native engine")
