"""What the texts of options mean. Of an option that is not given the value is empty."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError


def words(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The words of a command line in one text; ConfigError that names the option when a quote is not closed."""
    text = options[name] or ""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{_flag(name)} {text!r}: {error}") from error


def assignments(options: Mapping[str, Any], name: str, value: str = "VALUE", *, needed: bool = False) -> dict[str, str]:
    """The values by name of an option that may be repeated; ConfigError that names the option for a text that is not
    ``NAME=VALUE``.

    Args:
        options: the command's.
        name: of the option.
        value: what the error calls the part after ``=``.
        needed: whether that part must not be empty.
    """
    found: dict[str, str] = {}
    for text in options[name]:
        left, equals, right = text.partition("=")
        if not left or not equals or (needed and not right):
            raise ConfigError(f"{_flag(name)}: expected NAME={value}, got {text!r}")
        found[left] = right
    return found


def absolute(path: str | None) -> str | None:
    """The path from the root; None stays None."""
    return None if path is None else str(Path(path).absolute())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
