"""``tfcollective.keras`` under the name that Horovod gives it."""

from __future__ import annotations

import tfcollective.keras as _home
from tfcollective.keras import *  # noqa: F403

__all__: list[str] = list(_home.__all__)
