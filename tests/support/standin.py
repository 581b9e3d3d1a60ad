"""Simulated GPUs: the stand-ins of the native tests for the CUDA driver and NCCL, and arrays on them."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfcollective._runtime.communicator import CommunicatorOptions

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "native" / "nccl" / "standin"


@cache
def standins() -> Path:
    """The folder with both libraries, built once for these sources. Skips the test where there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to build the stand-ins for the CUDA driver and NCCL")
    sources = [*sorted(SOURCES.iterdir()), *sorted((ROOT / "native" / "device" / "nccl").glob("*_api.h"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = ROOT / "build" / f"standin-{digest}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        common = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", f"-I{ROOT / 'native'}", f"-I{SOURCES}"]
        cuda, nccl = made / "libcuda_standin.so", made / "libnccl_standin.so"
        subprocess.run([*common, str(SOURCES / "cuda.cc"), "-o", str(cuda), f"-Wl,-soname,{cuda.name}"], check=True)
        linked = [str(cuda), "-lrt", "-Wl,-rpath,$ORIGIN"]
        subprocess.run([*common, str(SOURCES / "nccl.cc"), "-o", str(nccl), *linked], check=True)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


def options(**changes: Any) -> CommunicatorOptions:
    """For a communicator on stand-in GPUs."""
    folder = standins()
    given = {
        "connect_timeout": 20,
        "op_timeout": 20,
        "nccl": str(folder / "libnccl_standin.so"),
        "cuda_driver": str(folder / "libcuda_standin.so"),
    }
    return CommunicatorOptions(**{**given, **changes})


@cache
def cuda() -> Any:
    """The driver's stand-in, with the functions that only it has."""
    library = ctypes.CDLL(str(standins() / "libcuda_standin.so"))
    library.standin_allocate.restype = ctypes.c_void_p
    library.standin_allocate.argtypes = (ctypes.c_int, ctypes.c_size_t)
    library.standin_free.argtypes = (ctypes.c_void_p,)
    library.standin_synchronize_memory.argtypes = (ctypes.c_void_p,)
    library.standin_set.argtypes = (ctypes.c_char_p, ctypes.c_long)
    return library


class GpuArray:
    """An array on GPU `device`; says where it lies as CuPy's arrays do.

    Its memory is kept: after a failure the GPU may still be writing to it.
    """

    def __init__(self, values: Any, device: int = 0, *, order: str = "C") -> None:
        host = np.asarray(values, order=order)
        self._pointer = cuda().standin_allocate(device, host.nbytes)
        ctypes.memmove(self._pointer, host.ctypes.data, host.nbytes)
        self._interface = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (self._pointer if host.size else 0, False),
            "version": 3,
            "strides": None if host.flags.c_contiguous else host.strides,
            "stream": 1,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


def host(array: Any) -> np.ndarray:
    """What the GPU holds when it is done with its default stream."""
    interface = array.__cuda_array_interface__
    cuda().standin_synchronize_memory(interface["data"][0])
    dtype = np.dtype(interface["typestr"])
    count = int(np.prod(interface["shape"], dtype=int))
    if not count:
        return np.empty(interface["shape"], dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(interface["data"][0])
    return np.frombuffer(bytes(raw), dtype).reshape(interface["shape"])
