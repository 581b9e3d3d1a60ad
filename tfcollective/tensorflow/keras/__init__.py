"""``tfcollective.keras`` under the name that Horovod gives it."""

from tfcollective.keras import *  # noqa: F403
from tfcollective.keras import __all__ as __all__  # type: ignore[attr-defined]
