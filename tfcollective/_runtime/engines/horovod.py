"""Horovod's engine under our interface. Its errors are TensorFlow's, which is not imported here: their names
distinguish them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import (
    CollectiveMismatchError,
    ConfigError,
    InvalidArgumentError,
    PeerLostError,
)
from tfcollective._base.topology import Placement
from tfcollective._runtime.communicator import Op
from tfcollective._runtime.engines.base import ExternalCommunicator
from tfcollective._runtime.engines.numbers import Array, cut

_T = TypeVar("_T")
_ERRORS = {"FailedPreconditionError": CollectiveMismatchError, "InvalidArgumentError": InvalidArgumentError}


class HorovodCommunicator(ExternalCommunicator):
    """Horovod's world. Its waits end by Horovod's own deadlines, which our launcher sets to the operation timeout."""

    def __init__(self, hvd: Any, placement: Placement, timeout: float, process_set: Any = None) -> None:
        super().__init__(placement, timeout)
        self._hvd = hvd
        self._announced: dict[tuple[int, ...], Any] = {}
        #: Horovod's, of the ranks of this communicator.
        self.process_set = hvd.global_process_set if process_set is None else process_set

    @classmethod
    def open(cls, timeout: float) -> HorovodCommunicator:
        """The world of the ranks that a launcher has started. ConfigError without Horovod."""
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise ConfigError(
                f"the engine horovod needs Horovod, which does not load here ({error}): build it beside TensorFlow "
                "2.15 or older: HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation "
                "horovod==0.28.1"
            ) from error
        hvd.init(process_sets="dynamic")  # so that sets can be added later
        place = Placement(
            hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        )
        return cls(hvd, place, timeout)

    def announce(self, ranks: Sequence[int]) -> None:
        """Horovod registers a process set on all ranks at once."""
        self._announced[tuple(ranks)] = self._call(lambda: self._hvd.add_process_set(list(ranks)))

    def dismiss(self, ranks: Sequence[int]) -> None:
        """Removes the set from Horovod, as it was registered."""
        process_set = self._announced.pop(tuple(ranks), None)
        if process_set is not None:
            self._call(lambda: self._hvd.remove_process_set(process_set))

    def subset(self, ranks: Sequence[int]) -> HorovodCommunicator:
        """Returns the communicator of a set that is already announced."""
        place = list(ranks).index(self.rank)
        placement = Placement(place, len(ranks), place, len(ranks), 0, 1)
        return HorovodCommunicator(self._hvd, placement, self._timeout, self._announced[tuple(ranks)])

    def world_rank(self, rank: int) -> int:
        """The rank in Horovod's world, by which it names a root, of one of this communicator's."""
        return rank if self.process_set is self._hvd.global_process_set else int(self.process_set.ranks[rank])

    def abort(self, cause: str) -> None:
        """The other ranks see that this process ends."""

    def close(self, timeout: float = 10.0) -> None:
        whole = self.process_set is self._hvd.global_process_set
        if not self._closed and whole:
            self._hvd.shutdown()
        self._closed = True

    def _reduce(self, array: Array, op: Op, deadline: Deadline) -> Array:
        reduced: Array = self._call(lambda: self._hvd.allreduce(array, op=int(op), **self._where()).numpy()).reshape(
            array.shape
        )
        return reduced

    def _gather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        import numpy as np

        sizes = self._call(lambda: self._hvd.allgather(np.array([len(data)], np.int64), **self._where()).numpy())
        everything = self._call(lambda: self._hvd.allgather(np.frombuffer(data, np.uint8), **self._where()).numpy())
        return cut(everything, sizes.tolist())

    def _exchange(self, parts: Sequence[bytes], deadline: Deadline) -> list[bytes]:
        import numpy as np

        sent = np.frombuffer(b"".join(parts), np.uint8)
        counts = np.array([len(part) for part in parts], np.int32)
        both = self._call(lambda: self._hvd.alltoall(sent, splits=counts, **self._where()))
        data, sizes = (one.numpy() for one in both)
        return cut(data, sizes.tolist())

    def _send_to_all(self, array: Array, root: int, deadline: Deadline) -> Array:
        sent: Array = self._call(lambda: self._hvd.broadcast(array, self.world_rank(root), **self._where()).numpy())
        return sent

    def _where(self) -> dict[str, Any]:
        return {"process_set": self.process_set}

    def _call(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except Exception as error:
            if not type(error).__module__.startswith("tensorflow."):
                raise
            raise _ERRORS.get(type(error).__name__, PeerLostError)(str(error)) from error
