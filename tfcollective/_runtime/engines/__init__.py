"""Communicators over other libraries that move data: Horovod and the vendor's MPI.

Both know their world already when they are opened. Horovod and mpi4py are imported when they are used.
"""

from tfcollective._runtime.engines.base import ExternalCommunicator

__all__ = ["ExternalCommunicator"]
