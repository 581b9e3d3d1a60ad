"""The user's records of running applications, for `tfcollective status`: the coordinator's address, its key, and the
credentials with which to ask the application's master for the present address."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfcollective.launcher import Settings, decode, encode, write_private

_FILE = "application.json"


@dataclass(frozen=True)
class Record:
    """An application that this user has submitted from this machine.

    Attributes:
        coordinator: HOST:PORT; a master that was started again has another one.
        key: the job key.
        certificate: of the application, for skein; and its ``private_key``.
    """

    coordinator: str
    key: bytes = field(repr=False)
    certificate: bytes = b""
    private_key: bytes = field(default=b"", repr=False)


def remember(app_id: str, record: Record) -> None:
    """Writes the record where only this user can read it. An error here does not stop a job."""
    with suppress(OSError, ValueError):
        folder = _folder(app_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_private(folder / _FILE, encode(record))


def recall(app_id: str) -> Record | None:
    """The record of an application; None of one that was not submitted from here, or has ended."""
    with suppress(OSError, ValueError):  # a ConfigError is one
        return decode((_folder(app_id) / _FILE).read_bytes(), Record, "the record of an application")
    return None


def forget(app_id: str) -> None:
    """Removes the record of an application that has ended."""
    with suppress(OSError, ValueError):
        shutil.rmtree(_folder(app_id), ignore_errors=True)


def _folder(app_id: str) -> Path:
    """Returns its folder; ValueError for a text that leads elsewhere, to the directories of all jobs for example."""
    if app_id in ("", ".", "..") or "/" in app_id:
        raise ValueError(f"{app_id!r} is not the name of an application")
    return Settings.load().jobs_directory() / app_id
