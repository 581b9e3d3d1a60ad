"""The steps of a rank, from the native algorithms themselves: nothing of them is written down twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfcollective._runtime.native_library import abi, load

__all__ = ["Step", "allreduce_steps"]

_ITEM = 4  # float32


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rank.

    Attributes:
        kind: send, receive, or wait for one of them.
        peer: the other rank; -1 for a wait.
        message: a send and the receive on the other side with equal numbers belong together.
        bytes: how many; 0 for a wait.
        request: the number of the send or receive; of a wait: which one it waits for.
        to_scratch: of a receive: whether its bytes are read and combined later.
    """

    kind: abi.StepKind
    peer: int
    message: int
    bytes: int
    request: int
    to_scratch: bool = False


def allreduce_steps(size: int, rank: int, nbytes: int) -> list[Step]:
    """What rank `rank` of `size`, each on a node of its own, does to sum `nbytes` bytes of float32.

    Raises:
        InvalidArgumentError: no such rank.
        ResourceExhaustedError: no memory for the buffer.
        ProtocolError: the native library is older than this package.
    """
    found: list[Step] = []

    def keep(_user: object, step: Any) -> None:
        one = step.contents
        kind = abi.StepKind(one.kind)
        found.append(Step(kind, one.peer, one.message, one.bytes, one.request, bool(one.to_scratch)))

    callback = abi.StepFn(keep)
    load().call("tfc_allreduce_steps", size, rank, max(1, nbytes // _ITEM), abi.DType.FLOAT32, callback, None)
    return found
