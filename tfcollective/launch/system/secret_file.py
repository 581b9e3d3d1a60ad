"""A secret in a file that only its owner can read, for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tfcollective.errors import ConfigError

__all__ = ["write_secret"]


@contextlib.contextmanager
def write_secret(path: str, text: str) -> Iterator[None]:
    """The file is there, whole and with mode 0600, while the block runs. ConfigError when it cannot be written.

    A file that is there already is replaced, not written into: others may have it open.
    """
    partial = f"{path}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            Path(partial).unlink()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
        Path(partial).replace(path)
    except OSError as error:
        raise ConfigError(f"the job key cannot be put into {path}: {error}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            Path(path).unlink()
