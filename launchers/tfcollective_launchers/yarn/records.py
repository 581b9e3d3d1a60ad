"""What this user knows of applications that run, for `tfcollective status`: where the coordinator is, and its key."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfcollective.codec import decode, encode
from tfcollective.errors import ConfigError
from tfcollective.private_directory import write_private
from tfcollective.settings import Settings

_FILE = "application.json"


@dataclass(frozen=True)
class _Record:
    coordinator: str
    key: bytes = field(repr=False)


def remember(app_id: str, coordinator: str, key: bytes) -> None:
    """Writes the record where only this user can read it. An error here does not stop a job."""
    with suppress(OSError, ValueError):
        folder = _folder(app_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / _FILE, encode(_Record(coordinator, key)))


def recall(app_id: str) -> tuple[str, bytes] | None:
    """Coordinator and key of an application that this user has submitted from this machine, or None."""
    with suppress(OSError, ConfigError):
        record = decode((_folder(app_id) / _FILE).read_bytes(), _Record, "the record of an application")
        return record.coordinator, record.key
    return None


def forget(app_id: str) -> None:
    """Removes the record of an application that has ended."""
    with suppress(OSError, ValueError):
        shutil.rmtree(_folder(app_id), ignore_errors=True)


def _folder(app_id: str) -> Path:
    return Settings.load().jobs_directory() / app_id
