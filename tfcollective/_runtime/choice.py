"""The choice of the engine: tfcollective's own, or the library that the settings name, which is imported only then."""

from __future__ import annotations

from tfcollective._base.settings import Settings
from tfcollective._runtime.engine import Engine


def choose_engine(settings: Settings) -> Engine:
    """Returns the engine that the settings name."""
    if settings.engine == "native":
        from tfcollective._runtime.native import NativeEngine, identify

        return NativeEngine(settings, identify(settings))
    from tfcollective._runtime.engines.external import ExternalEngine

    if settings.engine == "horovod":
        from tfcollective._runtime.engines.horovod import HorovodCommunicator

        return ExternalEngine(settings, HorovodCommunicator.open, "horovod")
    from tfcollective._runtime.engines.mpi import MpiCommunicator

    return ExternalEngine(settings, MpiCommunicator.open, "python")
