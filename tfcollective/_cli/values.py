"""What the texts of options mean. Of an option that is not given the value is empty."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.processes import command_words


def words(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The words of a command line in one text; ConfigError that names the option when a quote is not closed."""
    return _split(options, name, lambda text: tuple(shlex.split(text)))


def command_line(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Returns the words of a command, see :func:`~tfcollective._base.processes.command_words`; raises ConfigError."""
    return _split(options, name, command_words)


def _split(options: Mapping[str, Any], name: str, split: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    text = options[name] or ""
    try:
        return split(text)
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


def listed(texts: Sequence[str]) -> tuple[str, ...]:
    """All values of an option that may be repeated and may also hold several values, separated by commas."""
    return tuple(one for text in texts for one in text.split(",") if one)


def absolute(path: str | None) -> str | None:
    """The path from the root; None stays None."""
    return None if path is None else str(Path(path).absolute())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
