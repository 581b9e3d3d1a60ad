"""The steps of a rank, from the native algorithms themselves: nothing of them is written down twice.

They are in a library of their own, ``native/simulator``, which is built from the source tree and which no wheel has.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._runtime.native_library import Library, abi

__all__ = ["LIBRARY", "Step", "StepKind", "allreduce_steps", "load_simulator"]

#: Where CMake's component "simulator" installs the library.
LIBRARY = Path(__file__).resolve().with_name("libtfc_simulator.so")
_ITEM = 4  # float32


class StepKind(IntEnum):
    """The kind of a step (``tfc_step_kind``)."""

    SEND = 0
    RECEIVE = 1
    WAIT = 2


class _Step(ctypes.Structure):
    """``tfc_step``."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("message", ctypes.c_uint32),
        ("to_scratch", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
    )


_StepFn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Step))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a rank.

    Attributes:
        kind: send, receive, or wait for one of them.
        peer: the other rank; -1 for a wait.
        message: a send and the receive on the other side with equal numbers belong together.
        bytes: how many; 0 for a wait.
        request: the number of the send or receive; of a wait: which one it waits for.
        to_scratch: of a receive: whether its bytes are read and combined later.
    """

    kind: StepKind
    peer: int
    message: int
    bytes: int
    request: int
    to_scratch: bool = False


@cache
def load_simulator() -> Any:
    """Returns the library's function.

    Raises:
        ConfigError: the library is not here or does not load; the message says how to build it.
    """
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        into = LIBRARY.parents[2]
        raise ConfigError(
            f"cannot load the simulator's library: {error}. No wheel has it. Build it in tfcollective's source tree, "
            f"at this version: make simulator SIMULATOR_INTO={into}"
        ) from error
    function = library.tfc_allreduce_steps
    function.restype = ctypes.c_int32
    numbers = (ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32)
    function.argtypes = (*numbers, _StepFn, ctypes.c_void_p, ctypes.POINTER(abi.Error))
    return function


def allreduce_steps(size: int, rank: int, nbytes: int) -> list[Step]:
    """Returns what rank `rank` of `size`, each on a node of its own, does to sum `nbytes` bytes of float32.

    Raises:
        ConfigError: the library is not here.
        InvalidArgumentError: no such rank.
        ResourceExhaustedError: no memory for the buffer.
    """
    found: list[Step] = []

    def keep(_user: object, step: Any) -> None:
        one = step.contents
        kind = StepKind(one.kind)
        found.append(Step(kind, one.peer, one.message, one.bytes, one.request, bool(one.to_scratch)))

    error = abi.Error(struct_size=ctypes.sizeof(abi.Error))
    count = max(1, nbytes // _ITEM)
    code = load_simulator()(size, rank, count, abi.DType.FLOAT32, _StepFn(keep), None, ctypes.byref(error))
    Library.check("tfc_allreduce_steps", code, error)
    return found
