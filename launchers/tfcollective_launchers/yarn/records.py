"""What this user knows of applications that run, for `tfcollective status`: where the coordinator is, and its key."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tfcollective.private_directory import runtime_directory
from tfcollective.settings import Settings, environ_snapshot

__all__ = ["forget", "recall", "remember"]

_FILE = "application.json"


def remember(app_id: str, coordinator: str, key: bytes) -> None:
    """Keeps it where only this user can read it. That it cannot be kept is no reason to stop a job."""
    with suppress(OSError, ValueError):
        folder = _folder(app_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"coordinator": coordinator, "key": key.hex()}, file)


def recall(app_id: str) -> tuple[str, bytes] | None:
    """Coordinator and key of an application that this user has submitted from this machine, or None."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads((_folder(app_id) / _FILE).read_text())
        return str(document["coordinator"]), bytes.fromhex(document["key"])
    return None


def forget(app_id: str) -> None:
    """It has ended."""
    with suppress(OSError, ValueError):
        shutil.rmtree(_folder(app_id), ignore_errors=True)


def _folder(app_id: str) -> Path:
    environ = environ_snapshot()
    return runtime_directory(Settings.load(environ).runtime_dir, environ, tempfile.gettempdir()) / app_id
