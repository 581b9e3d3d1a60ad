"""Reads what a job says of its platform (``JobSpec.platform``) as values of the launcher's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from tfcollective._base.errors import ConfigError
from tfcollective._base.timing import MOST_SECONDS, unfit_seconds

T = TypeVar("T")


def platform_options(kind: type[T], platform: Mapping[str, Any], launcher: str) -> T:
    """A job's settings of its platform, as a dataclass of this kind; what is None is as by default.

    Raises ConfigError that lists what the launcher takes, and as the dataclass.
    """
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(platform) - set(known))
    if unknown:
        raise ConfigError(f"the launcher {launcher!r} has no option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    given = {name: value for name, value in platform.items() if value is not None}
    for name, one in known.items():
        if name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise ConfigError(f"the launcher {launcher!r} needs the option {name!r}")
    return kind(**given)


def check_timeout(name: str, seconds: object, most: float = MOST_SECONDS) -> None:
    """Raises ConfigError when this is not a number of seconds above 0, and at most ``most``."""
    needed = unfit_seconds(seconds, above_zero=True, most=most)
    if needed is not None:
        raise ConfigError(f"{name}: expected a number of seconds {needed}, got {seconds!r}")
