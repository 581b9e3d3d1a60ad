"""Horovod's questions about what an installation can do, answered for the engine in use."""

from __future__ import annotations

from tfcollective import _runtime as runtime

__all__: tuple[str, ...] = (
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
)


def _engine() -> str:
    """Returns the engine in use; before ``init()`` the native one."""
    return runtime.settings().engine if runtime.is_initialized() else "native"


def mpi_threads_supported() -> bool:
    """Returns False: MPI is called by one thread at a time."""
    return False


def mpi_enabled() -> bool:
    """True if MPI moves the data: with the engine mpi."""
    return _engine() == "mpi"


def mpi_built() -> bool:
    """See :func:`mpi_enabled`."""
    return mpi_enabled()


def gloo_enabled() -> bool:
    """True if Gloo moves the data: with the engine horovod. Otherwise tfcollective's own transports do."""
    return _engine() == "horovod"


def gloo_built() -> bool:
    """See :func:`gloo_enabled`."""
    return gloo_enabled()


def nccl_built() -> int:
    """NCCL's version as a number; 0: it is not built in, arrays on GPUs look for it when they are used."""
    return 0


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """False: nothing of CUDA is linked; its driver is loaded when an array on a GPU is given to a collective."""
    return False


def rocm_built() -> bool:
    """False: ROCm is not used."""
    return False
