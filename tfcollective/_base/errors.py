"""The errors that tfcollective raises on purpose.

Errors are data: decide by type, `code`, `rank` or `peer`, never by the text. The native codes and their
meaning are in ``tfcollective.h``; only :mod:`tfcollective._runtime.native_library` maps codes to these classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

__all__ = [
    "Code",
    "CollectiveAbortedError",
    "CollectiveCancelledError",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ConfigError",
    "CoordinatorError",
    "DeviceError",
    "InternalError",
    "InvalidArgumentError",
    "LaunchError",
    "PeerLostError",
    "ProtocolError",
    "RendezvousError",
    "ResourceExhaustedError",
    "StateError",
    "TfCollectiveError",
    "TransportError",
    "UnsupportedError",
    "WorkerFailedError",
]


class Code(IntEnum):
    """The kind of an error, as in the C header."""

    OK = 0
    INVALID_ARGUMENT = 1
    FAILED_PRECONDITION = 2
    MISMATCH = 3
    DEADLINE_EXCEEDED = 4
    PEER_LOST = 5
    ABORTED = 6
    CANCELLED = 7
    IO = 8
    DEVICE = 9
    RESOURCE_EXHAUSTED = 10
    UNIMPLEMENTED = 11
    PROTOCOL = 12
    INTERNAL = 13


class TfCollectiveError(Exception):
    """Base of every error raised by tfcollective."""


class CollectiveError(TfCollectiveError):
    """An error with a native code.

    Attributes:
        code: what went wrong.
        peer: the rank that the error is about, or None.
        sys_errno: the errno of the system call that failed, or None.
    """

    code: Code = Code.INTERNAL

    def __init__(self, message: str, *, peer: int | None = None, sys_errno: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer
        self.sys_errno = sys_errno


class InvalidArgumentError(CollectiveError, ValueError):
    """A bad argument on this rank."""

    code = Code.INVALID_ARGUMENT


class StateError(CollectiveError, RuntimeError):
    """The object or the runtime is not initialised, or is already closed."""

    code = Code.FAILED_PRECONDITION


class CollectiveMismatchError(CollectiveError):
    """Ranks disagree on operation, name, dtype, shape or root. The message shows every rank's view."""

    code = Code.MISMATCH


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """An operation did not end in time. The message names it, its phase and the missing ranks."""

    code = Code.DEADLINE_EXCEEDED


class PeerLostError(CollectiveError, ConnectionError):
    """A peer's process or link ended; ``peer`` is its rank."""

    code = Code.PEER_LOST


class CollectiveAbortedError(CollectiveError):
    """Another rank aborted the collective; ``peer`` is that rank and the message holds its cause."""

    code = Code.ABORTED


class CollectiveCancelledError(CollectiveError):
    """The operation was cancelled on this rank."""

    code = Code.CANCELLED


class TransportError(CollectiveError, OSError):
    """A system call failed on this rank; ``sys_errno`` says how."""

    code = Code.IO


class DeviceError(CollectiveError):
    """CUDA or NCCL failed."""

    code = Code.DEVICE


class ResourceExhaustedError(CollectiveError):
    """The process or its host is out of memory, descriptors, ports or channels."""

    code = Code.RESOURCE_EXHAUSTED


class UnsupportedError(CollectiveError, NotImplementedError):
    """A combination of type, operation and backend that is not supported."""

    code = Code.UNIMPLEMENTED


class ProtocolError(CollectiveError):
    """Wrong magic, version or key; or bytes came that are not what ``peer`` has sent."""

    code = Code.PROTOCOL


class InternalError(CollectiveError):
    """An invariant of tfcollective broke: please report it."""

    code = Code.INTERNAL


class ConfigError(TfCollectiveError, ValueError):
    """A setting, option or environment variable that cannot be used."""


class CoordinatorError(TfCollectiveError, ConnectionError):
    """The coordinator cannot be reached, or refused a request."""


class RendezvousError(TfCollectiveError, RuntimeError):
    """The world did not come together.

    Attributes:
        missing: the tasks that had not joined, as text ("worker:3").
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class LaunchError(TfCollectiveError, RuntimeError):
    """A job could not be launched."""


class WorkerFailedError(LaunchError):
    """At least one task of a job failed.

    Attributes:
        failures: one record a failed task, in the order of failure.
        first: the record of the first failure that is not a consequence of another.
    """

    def __init__(
        self, message: str, *, failures: Sequence[Mapping[str, object]] = (), first: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        self.first = first
