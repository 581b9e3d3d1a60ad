"""Files that options name."""

from __future__ import annotations

from pathlib import Path

from tfcollective.errors import ConfigError

__all__ = ["read_text"]


def read_text(option: str, path: str) -> str:
    """What the file holds; ConfigError that names option and file when it cannot be read, or is no text in UTF-8."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option}: {path} is no text in UTF-8: {error}") from error
