"""See ``tfcollective.elastic``."""

from tfcollective.elastic import *  # noqa: F403
from tfcollective.elastic._notices import (  # noqa: F401
    HostUpdateResult,
    WorkerNotificationManager,
    notification_manager,
)
