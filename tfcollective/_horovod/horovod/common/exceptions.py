"""The exceptions that elastic training knows; see ``tfcollective.elastic``."""

from tfcollective.elastic import HorovodInternalError, HostsUpdatedInterrupt  # noqa: F401
