"""Directories and files that only this user can look into: for records of running jobs, keys, and what was compiled
here."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tfcollective._base.errors import ConfigError

_KEY_FILE = "user.key"
_KEY_BYTES = 32
# systemd-logind removes a user's directory there with the last session; a job that was started with nohup keeps
# running.
_REMOVED_AT_LOGOUT = "/run/user/"


def runtime_directory(override: str | None, environ: Mapping[str, str], temporary: Callable[[], str]) -> Path:
    """The directory of this user's jobs: ``override``, ``$XDG_RUNTIME_DIR/tfcollective`` unless it goes at logout, or
    one below ``temporary``, which is asked only then: it raises OSError where there is none.

    Creates it with mode 0700; raises ConfigError when it cannot be made or others can use it.
    """
    try:
        path = _choose(override, environ, temporary)
    except OSError as error:
        raise ConfigError(
            f"cannot create a folder for the records of running jobs: {error.strerror}; set "
            "TFCOLLECTIVE_RUNTIME_DIR to a writable folder, for example /dev/shm/tfcollective"
        ) from error
    try:
        path.mkdir(mode=0o700, parents=override is not None, exist_ok=True)
        _check_private(path)
    except OSError as error:
        raise unusable(path, error) from error
    return path


def cache_directory(override: str | None) -> Path:
    """Returns this user's folder for what can be made again: ``override`` or ``~/.cache/tfcollective``.

    Creates it with mode 0700; raises ConfigError when it cannot be made or others can use it.
    """
    path = Path(override) if override else Path("~", ".cache", "tfcollective")
    try:
        path = path.expanduser()  # a user of a container may have no home
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(path, "TFCOLLECTIVE_CACHE_DIR")
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"cannot use {path}: {error}; TFCOLLECTIVE_CACHE_DIR names another place") from error
    return path


def unusable(path: Path, error: OSError) -> ConfigError:
    """Returns the error to raise when something below the directory cannot be read or written."""
    return ConfigError(
        f"cannot use {path} for the records of running jobs: {error}; TFCOLLECTIVE_RUNTIME_DIR names another place"
    )


def user_key(directory: Path) -> bytes:
    """A random key that this user's processes on this machine share; made by the first process that asks.

    Raises ConfigError when it can be neither read nor written.
    """
    path = directory / _KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        key = bytes.fromhex(path.read_text("ascii"))
    except OSError as error:
        raise unusable(path, error) from error
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:  # empty after a crash of the machine, for example: anyone could guess it
        raise ConfigError(f"{path} holds no key: remove it, a new one is made")
    return key


def write_private(path: Path, data: bytes) -> None:
    """Makes a file that only this user can read, with mode 0600, whole or not at all; OSError if it cannot.

    A file that is there already is replaced, not written into: others may have it open.
    """
    with _written_beside(path, data) as partial:
        partial.replace(path)


def _make_key(path: Path) -> None:
    """Whole or not at all, and only if no other process was faster."""
    key = secrets.token_hex(_KEY_BYTES).encode()
    with _written_beside(path, key) as partial, contextlib.suppress(FileExistsError):
        path.hardlink_to(partial)


@contextlib.contextmanager
def _written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A private file with ``data`` in the directory of ``path``, under a name of its own; it does not stay."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _choose(override: str | None, environ: Mapping[str, str], temporary: Callable[[], str]) -> Path:
    if override:
        return Path(override)
    xdg = environ.get("XDG_RUNTIME_DIR", "")
    usable = bool(xdg) and os.access(xdg, os.W_OK | os.X_OK)
    if usable and not xdg.startswith(_REMOVED_AT_LOGOUT):
        return Path(xdg) / "tfcollective"
    try:
        return Path(temporary()) / f"tfcollective-{os.getuid()}"
    except OSError:
        if usable:
            return Path(xdg) / "tfcollective"
        raise


def _check_private(path: Path, variable: str = "TFCOLLECTIVE_RUNTIME_DIR") -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{path} must be a directory of your own with mode 700: remove it, set its mode, or let "
            f"{variable} name another one"
        )
