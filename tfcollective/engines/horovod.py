"""Horovod's engine under our interface. Its errors are TensorFlow's, which is not imported here: they are told apart by
their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tfcollective.clock import Deadline
from tfcollective.communicator import Op
from tfcollective.engines.foreign import ForeignCommunicator
from tfcollective.engines.numbers import Array
from tfcollective.errors import (
    CollectiveMismatchError,
    ConfigError,
    InvalidArgumentError,
    PeerLostError,
    UnsupportedError,
)
from tfcollective.topology import Placement

__all__ = ["HorovodCommunicator"]

_T = TypeVar("_T")
_ERRORS = {"FailedPreconditionError": CollectiveMismatchError, "InvalidArgumentError": InvalidArgumentError}


class HorovodCommunicator(ForeignCommunicator):
    """Horovod's world. Its waits end by Horovod's own deadlines, which our launcher sets to the operation timeout."""

    def __init__(self, hvd: Any, placement: Placement, timeout: float) -> None:
        super().__init__(placement, timeout)
        self._hvd = hvd

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
        hvd.init()
        place = Placement(
            hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        )
        return cls(hvd, place, timeout)

    def subset(self, ranks: Sequence[int]) -> HorovodCommunicator:
        """Horovod's process sets are registered by all ranks at once, ours by their members: not together."""
        raise UnsupportedError("process sets: with the engines native and mpi only")

    def abort(self, cause: str) -> None:
        """The other ranks see that this process ends."""

    def close(self, timeout: float = 10.0) -> None:
        """See :class:`Communicator`."""
        if not self._closed:
            self._closed = True
            self._hvd.shutdown()

    def _reduce(self, array: Array, op: Op, deadline: Deadline) -> Array:
        reduced: Array = self._call(lambda: self._hvd.allreduce(array, op=int(op)).numpy()).reshape(array.shape)
        return reduced

    def _gather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        import numpy as np

        sizes = self._call(lambda: self._hvd.allgather(np.array([len(data)], np.int64)).numpy())
        everything = self._call(lambda: self._hvd.allgather(np.frombuffer(data, np.uint8)).numpy())
        ends = np.cumsum(sizes)
        return [everything[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]

    def _exchange(self, parts: Sequence[bytes], deadline: Deadline) -> list[bytes]:
        import numpy as np

        sent = np.frombuffer(b"".join(parts), np.uint8)
        counts = np.array([len(part) for part in parts], np.int32)
        data, sizes = self._call(lambda: [one.numpy() for one in self._hvd.alltoall(sent, splits=counts)])
        ends = np.cumsum(sizes)
        return [data[end - size : end].tobytes() for end, size in zip(ends, sizes, strict=True)]

    def _send_to_all(self, array: Array, root: int, deadline: Deadline) -> Array:
        sent: Array = self._call(lambda: self._hvd.broadcast(array, root_rank=root).numpy())
        return sent

    def _call(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except Exception as error:
            if not type(error).__module__.startswith("tensorflow."):
                raise
            raise _ERRORS.get(type(error).__name__, PeerLostError)(str(error)) from error
