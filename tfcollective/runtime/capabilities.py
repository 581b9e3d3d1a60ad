"""What this installation can do, in Horovod's questions. The answers are those of the native engine."""

from __future__ import annotations

__all__ = [
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
]


def mpi_threads_supported() -> bool:
    """False: no MPI is used."""
    return False


def mpi_enabled() -> bool:
    """False: no MPI is used."""
    return False


def mpi_built() -> bool:
    """False: no MPI is used."""
    return False


def gloo_enabled() -> bool:
    """False: ranks talk over tfcollective's own transports, not over Gloo."""
    return False


def gloo_built() -> bool:
    """False: ranks talk over tfcollective's own transports, not over Gloo."""
    return False


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
    """False: tensors on GPUs travel through the host's memory."""
    return False


def rocm_built() -> bool:
    """False: tensors on GPUs travel through the host's memory."""
    return False
