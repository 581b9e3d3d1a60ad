"""Names of files here and elsewhere, and what is done with single ones."""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError
from tfcollective.files import _remote as remote
from tfcollective.files._facts import FileFacts, abandoned, local_facts, temporary_name

# A path on this machine, or a text with a scheme: "hdfs://namenode/models/run7".
Place = str | Path

SCRATCH_PREFIX = "tfcollective-files-"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SWALLOWED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
_fetched: dict[str, Path] = {}


def is_url(place: Place) -> bool:
    """True if it is a URL: a text with a scheme. Such a place is never made a path."""
    return isinstance(place, str) and _SCHEME.match(place) is not None


def as_place(place: Any, name: str) -> Place:
    """Returns a user's value as a URL or a path. Raises ConfigError for a URL that a ``Path`` has mangled.

    Args:
        place: a text or a path.
        name: what it is called, for the error.
    """
    text = os.fspath(place)
    if isinstance(text, str) and is_url(text):
        return text.rstrip("/")
    if _SWALLOWED.match(str(text)):
        raise ConfigError(f"{name}: a Path has taken a slash out of a URL: {text}: give the URL as a text")
    return Path(text)


def join(place: Place, *names: str) -> Place:
    """The place of something below."""
    return "/".join((place.rstrip("/"), *names)) if isinstance(place, str) and is_url(place) else Path(place, *names)


@contextmanager
def written_whole(place: Place) -> Iterator[Path]:
    """A local path to write to; when the block is left without an exception, what is there replaces ``place`` at once.

    Several writers do not disturb each other: the last one counts. What one leaves that is killed in the middle goes
    when a writer appears some minutes later.

    Raises OSError that names the place; then what was there is still there.
    """
    if is_url(place):
        with _scratch() as folder:
            yield (local := folder / str(place).rpartition("/")[2])
            remote.upload(local, str(place))
        return
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(temporary_name(path.name))
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None or error.errno not in _DISK_ERRORS:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write does not say what it wrote to
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):
        _remove_abandoned(path)


@contextmanager
def local_copy(place: Place) -> Iterator[Path]:
    """A local path with what is at ``place``, as long as the block runs. Raises FileNotFoundError or OSError."""
    if not is_url(place):
        yield Path(place)
        return
    with _scratch() as folder:
        local = folder / str(place).rpartition("/")[2]
        remote.download(str(place), local)
        yield local


def local_path(place: Place) -> Path:
    """A path on this machine with what is at ``place``: for data that TensorFlow or numpy shall read.

    A file that is elsewhere is fetched when it is first asked for, and deleted when this process ends.

    Raises:
        ConfigError: the file system's package is not installed.
        FileNotFoundError: there is nothing elsewhere. Other OSErrors say what could not be read.
    """
    if not is_url(place):
        return Path(place)
    url = str(place)
    if url not in _fetched:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        remote.download(url, folder / url.rpartition("/")[2])
        _fetched[url] = folder / url.rpartition("/")[2]
    return _fetched[url]


def delete(place: Place) -> None:
    """Removes a file; nothing if there is none. Raises OSError."""
    if not is_url(place):
        Path(place).unlink(missing_ok=True)
    else:
        remote.remove(str(place))


def delete_tree(place: Place) -> None:
    """Removes a directory as far as it can."""
    if not is_url(place):
        shutil.rmtree(place, ignore_errors=True)
    else:
        remote.remove_tree(str(place))


def list_files(directory: Place) -> dict[str, FileFacts]:
    """The files in a directory (not below it) by name, without hidden ones; none if it does not exist (yet)."""
    if is_url(directory):
        return remote.list_files(str(directory))
    files = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # deleted while we looked: the others are there
                if not entry.name.startswith(".") and entry.is_file():
                    facts = entry.stat()
                    files[entry.name] = FileFacts(facts.st_mtime_ns, facts.st_size)
    return files


def _remove_abandoned(path: Path) -> None:
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".")]
    found = {}
    for name in names:
        with suppress(FileNotFoundError):  # its writer has just ended
            found[name] = path.with_name(name).stat().st_mtime_ns
    for name in abandoned(path.name, found, local_facts(path).modified_ns):
        path.with_name(name).unlink(missing_ok=True)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX) as folder:
        yield Path(folder)


_T = TypeVar("_T")


def write_json(place: Place, value: object) -> None:
    """Puts `value` at `place`, which it replaces at once."""
    with written_whole(place) as path:
        path.write_bytes(encode(value))


def read_json(place: Place, kind: type[_T]) -> _T | None:
    """The `kind` that is at `place`; None if nothing is.

    Raises ConfigError if it is something else, OSError if it cannot be read.
    """
    try:
        with local_copy(place) as path:
            return decode(path.read_bytes(), kind, str(place))
    except FileNotFoundError:
        return None
