"""Arrays on a GPU as the native library wants them, whatever library made them.

Two protocols say where an array lies: ``__cuda_array_interface__`` (CuPy, PyTorch, Numba, JAX) and DLPack, which also
has bfloat16. No such library is imported here.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.native_library import abi

_CUDA = 2  # DLPack's number
_CUDA_MANAGED = 13
_LEGACY_STREAM = 1
#: By numpy's kind and bytes; bfloat16, which numpy does not know, is not among them.
TYPES: dict[tuple[str, int], abi.DType] = {
    ("f", 2): abi.DType.FLOAT16,
    ("f", 4): abi.DType.FLOAT32,
    ("f", 8): abi.DType.FLOAT64,
    **{("i", 1 << n): abi.DType[f"INT{8 << n}"] for n in range(4)},
    **{("u", 1 << n): abi.DType[f"UINT{8 << n}"] for n in range(4)},
    ("b", 1): abi.DType.BOOL,
}
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
_DLPACK_BFLOAT = 4


@dataclass(frozen=True)
class DeviceBuffer:
    """An array on a device: where it lies, what is in it, and the object that owns it.

    Attributes:
        stream: the stream on which it is made, as the array itself says; None if it does not.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: abi.DType
    owner: Any
    stream: int | None = None
    writeable: bool = True

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def array(self) -> Any:
        """The caller's array."""
        return self.owner[0] if isinstance(self.owner, tuple) else self.owner


def is_device(value: object) -> bool:
    """True if `value` is an array on a GPU. Costs nothing for numpy arrays, lists and numbers."""
    kind = type(value)
    if kind.__module__ in ("numpy", "builtins"):
        return False
    device = getattr(value, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) in (_CUDA, _CUDA_MANAGED)
    return hasattr(value, "__cuda_array_interface__")


def as_device(value: Any, argument: str) -> DeviceBuffer:
    """`value` as a buffer on a GPU; nothing is copied.

    Raises:
        InvalidArgumentError: it is not on a GPU, or not C-contiguous.
        UnsupportedError: a type of element that there is not.
    """
    if not is_device(value):
        raise InvalidArgumentError(f"{argument}: expected an array on a GPU, got {type(value).__name__} of the host")
    try:
        interface = value.__cuda_array_interface__
    except (AttributeError, TypeError):  # PyTorch has none for bfloat16
        return _from_dlpack(value, argument)
    if interface.get("mask") is not None:
        raise UnsupportedError(f"{argument}: an array with a mask cannot be communicated from a GPU")
    typestr = str(interface["typestr"])
    dtype = TYPES.get((typestr[1:2], int(typestr[2:]) if typestr[2:].isdecimal() else 0))
    if dtype is None and hasattr(value, "__dlpack__"):
        return _from_dlpack(value, argument)
    if dtype is None or typestr[0] == ">":
        raise UnsupportedError(f"{argument}: elements of type {typestr!r} cannot be communicated from a GPU")
    shape = tuple(int(length) for length in interface["shape"])
    strides = interface.get("strides")
    if strides is not None:
        _check_contiguous(argument, shape, [int(stride) for stride in strides], int(typestr[2:]))
    pointer, read_only = interface["data"]
    return DeviceBuffer(int(pointer or 0), shape, dtype, value, interface.get("stream"), not read_only)


def _check_contiguous(argument: str, shape: Sequence[int], strides: Sequence[int], unit: int) -> None:
    if len(strides) != len(shape):
        raise InvalidArgumentError(f"{argument}: has shape {tuple(shape)}, but strides {tuple(strides)}")
    expected = unit
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected and 0 not in shape:
            raise InvalidArgumentError(
                f"{argument}: an array on a GPU must be C-contiguous; make a contiguous copy first "
                f"(shape {tuple(shape)}, strides {tuple(strides)})"
            )
        expected *= length


class DlDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DlType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DlDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DlType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _from_dlpack(value: Any, argument: str) -> DeviceBuffer:
    # The capsule stays ours and unused, so its own destructor gives the tensor back: `owner` keeps it until then.
    capsule = value.__dlpack__(stream=-1)  # no synchronisation: the operation is put on the caller's stream
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = DlTensor.from_address(get(capsule, b"dltensor"))  # the first member of DLManagedTensor
    kind = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    if kind == (_DLPACK_BFLOAT, 16, 1):
        dtype: abi.DType | None = abi.DType.BFLOAT16
    else:
        dtype = TYPES.get((_DLPACK_KINDS.get(kind[0], "?"), kind[1] // 8)) if kind[2] == 1 else None
    if dtype is None:
        raise UnsupportedError(f"{argument}: DLPack elements {kind} cannot be communicated from a GPU")
    shape = tuple(int(tensor.shape[i]) for i in range(tensor.ndim))
    if tensor.strides:
        _check_contiguous(argument, shape, [int(tensor.strides[i]) for i in range(tensor.ndim)], 1)
    return DeviceBuffer(int(tensor.data or 0) + int(tensor.byte_offset), shape, dtype, (value, capsule))


def stream_of(buffer: DeviceBuffer, given: Any) -> int:
    """The stream that the operation follows: the one given, else the array's, else its library's current one.

    Args:
        given: a number, an object with ``ptr`` (CuPy), ``cuda_stream`` (PyTorch) or ``handle`` (Numba), or None.

    Raises:
        InvalidArgumentError: `given` is nothing of that.
    """
    if given is not None:
        for name in ("ptr", "cuda_stream", "handle"):
            given = getattr(given, name, given)
        if isinstance(given, ctypes.c_void_p):
            given = given.value or 0
        if hasattr(given, "__int__") and not isinstance(given, float):  # also those of CUDA's own bindings
            given = int(given)
        if not isinstance(given, int) or given < 0:
            raise InvalidArgumentError(f"stream: expected a stream or its handle, got {given!r}")
        return given
    if buffer.stream is not None:
        return 0 if buffer.stream == _LEGACY_STREAM else int(buffer.stream)
    return _current_torch_stream(buffer)


def _current_torch_stream(buffer: DeviceBuffer) -> int:
    """PyTorch's arrays do not say which stream they are made on."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer.array, torch.Tensor):
        return 0
    return int(torch.cuda.current_stream(buffer.array.device).cuda_stream)
