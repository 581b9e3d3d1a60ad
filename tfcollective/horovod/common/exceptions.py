"""Horovod's module of this name: the exceptions of elastic training."""

from tfcollective.elastic import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
