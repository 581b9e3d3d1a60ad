"""What numbers a benchmark can be asked for. Pure."""

from __future__ import annotations

from tfcollective.errors import ConfigError

__all__ = ["check_above_zero"]


def check_above_zero(**given: float) -> None:
    """ConfigError that names the option and its value, unless all are above 0."""
    for name, value in given.items():
        if not value > 0:  # also what is not a number
            raise ConfigError(f"--{name}: a number above 0, not {value:g}")
