"""``tfcollective.keras.callbacks`` under the name that Horovod gives it."""

from __future__ import annotations

import tfcollective.keras.callbacks as _home
from tfcollective.keras.callbacks import *  # noqa: F403

__all__: list[str] = list(_home.__all__)
