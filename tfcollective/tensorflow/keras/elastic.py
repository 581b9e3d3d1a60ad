"""``tfcollective.keras.elastic`` under the name that Horovod gives it."""

from __future__ import annotations

import tfcollective.keras.elastic as _home
from tfcollective.keras.elastic import *  # noqa: F403

__all__: list[str] = list(_home.__all__)
