"""Arguments of a communicator, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tfcollective._base.errors import InvalidArgumentError
from tfcollective._base.settings import Settings
from tfcollective._base.timing import unfit_seconds
from tfcollective._base.topology import Placement
from tfcollective._runtime.native_library import abi

Collective = abi.Collective
Op = abi.Op
Average = Op.AVERAGE
Sum = Op.SUM
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT


@dataclass(frozen=True)
class CommunicatorOptions:
    """The options with which a communicator connects and waits. Times are seconds.

    Attributes:
        connect_timeout: until every peer must be connected.
        op_timeout: of an operation that gives no timeout of its own.
        stall_warning: log a warning when an operation has waited this long; 0 for none.
        transport: "auto" (shared memory inside a node, TCP between nodes) or "tcp".
        spin_us: spin this many microseconds before sleeping; -1 chooses by cores and local ranks.
        nccl: the NCCL library to use; by default a loaded copy, one of the packages nvidia-nccl-*, or the loader's.
        cuda_driver: the CUDA driver to use instead of libcuda.so.1.
        share_gpus: several ranks may use one GPU.
        link_probe: measure the network between nodes while connecting and choose algorithms by it; rank 0's counts.
    """

    connect_timeout: float = Settings.start_timeout
    op_timeout: float = Settings.op_timeout
    stall_warning: float = Settings.stall_warning
    transport: str = "auto"
    spin_us: int = -1
    nccl: str | None = None
    cuda_driver: str | None = None
    share_gpus: bool = False
    link_probe: bool = True


@dataclass(frozen=True)
class CommunicatorInfo(Placement):
    """A snapshot of a communicator's place and state.

    `completed` and `pending` count operations of this rank; `broken` is true once an error has ended it. `link_latency`
    (seconds, of a small message) and `link_bandwidth` (bytes per second, of a large one) are of the network that data
    passes, measured while connecting and the same on all ranks; 0 where nothing was measured.
    """

    uses_shared_memory: bool
    broken: bool
    completed: int
    pending: int
    link_latency: float = 0.0
    link_bandwidth: float = 0.0


class Call(NamedTuple):
    """The arguments of an operation without the arrays, named as in :class:`Communicator`."""

    collective: Collective
    name: str | None
    timeout: float | None
    stream: Any = None
    op: Op = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0


def checked_timeout(timeout: float | None) -> float:
    """The seconds of a ``timeout`` argument; 0 where it leaves them to the communicator. InvalidArgumentError."""
    if timeout is None:
        return 0.0
    needed = unfit_seconds(float(timeout), above_zero=True)
    if needed is not None:
        raise InvalidArgumentError(f"timeout: expected seconds {needed}, got {timeout}")
    return float(timeout)


def checked_op(op: Op | int) -> Op:
    """The reduction of an ``op`` argument. InvalidArgumentError for an unknown one."""
    try:
        return Op(op)
    except ValueError:
        names = ", ".join(member.name.capitalize() for member in Op)
        raise InvalidArgumentError(f"op: expected one of {names}, got {op!r}") from None
