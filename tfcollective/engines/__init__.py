"""Other movers of data than the native engine: Horovod and MPI, for those who want to stay with what they have.

Each is a communicator that knows the world already. Horovod and mpi4py are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Callable

from tfcollective.engines.foreign import ForeignCommunicator, NoListener

__all__ = ["ForeignCommunicator", "NoListener", "open_engine"]


def open_engine(name: str, timeout: float) -> ForeignCommunicator:
    """The communicator of the world that this engine's own launcher, or ours, has prepared.

    Args:
        name: "horovod" or "mpi".
        timeout: how long (s) an operation may wait for the other ranks.

    Raises:
        ConfigError: the engine is not installed; says what to install.
    """
    return _ENGINES[name](timeout)


def _horovod(timeout: float) -> ForeignCommunicator:
    from tfcollective.engines.horovod import HorovodCommunicator

    return HorovodCommunicator.open(timeout)


def _mpi(timeout: float) -> ForeignCommunicator:
    from tfcollective.engines.mpi import MpiCommunicator

    return MpiCommunicator.open(timeout)


_ENGINES: dict[str, Callable[[float], ForeignCommunicator]] = {"horovod": _horovod, "mpi": _mpi}
