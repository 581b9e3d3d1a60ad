"""Remote files, by fsspec: every failure is an OSError that names the file, and no reader finds half of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective.files._facts import FileFacts, abandoned, temporary_name

_EXTRAS = {
    "hdfs": "pip install 'tfcollective[hdfs]', or write webhdfs://HOST:PORT/...",
    "viewfs": "pip install 'tfcollective[hdfs]'",
    "webhdfs": "pip install 'tfcollective[webhdfs]'",
    "s3": "pip install 'tfcollective[s3]'",
    "s3a": "pip install 'tfcollective[s3]'",
}
# An object is there when all of it has come, and not before; it cannot be renamed.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})
# What file systems call the time of the last change, and how many ns its unit has.
_TIMES = {
    "mtime": 10**9,
    "modificationTime": 10**6,
    "modification_time": 10**6,
    "LastModified": 10**9,
    "created": 10**9,
}
# In a forked process fsspec forgets its file systems. One that ends there may hang, waiting for threads that were not
# forked, as hdfs-native does: ours are kept.
_kept: set[Any] = set()


def upload(local: Path, url: str) -> None:
    """Puts a file at a URL, beside its place first, and renamed: there is either the old file or the new one."""
    fs, path = _resolve(url)
    parent, _, name = path.rpartition("/")
    with _named("write", url):
        if url.partition("://")[0] in _OBJECT_STORES:
            fs.put_file(str(local), path)
            return
        fs.makedirs(parent, exist_ok=True)
        temporary = f"{parent}/{temporary_name(name)}"
        try:
            fs.put_file(str(local), temporary)
            _rename(fs, temporary, path)
        except BaseException:
            with suppress(Exception):
                fs.rm_file(temporary)
            raise
    with suppress(Exception):
        _remove_abandoned(fs, parent, name)


def download(url: str, local: Path) -> None:
    """Puts what is at a URL into a local file. Raises FileNotFoundError or OSError."""
    fs, path = _resolve(url)
    local.parent.mkdir(parents=True, exist_ok=True)
    with _named("read", url):
        fs.invalidate_cache()
        if not fs.exists(path) and fs.exists(_previous(path)):
            path = _previous(path)  # who writes it is between two renames, or was killed there
        try:
            fs.get_file(path, str(local))
        except BaseException:
            local.unlink(missing_ok=True)
            raise


def append_tail(url: str, size: int, local: Path) -> None:
    """Appends to a local file what it has not of the one at a URL, which has ``size`` bytes and only ever grows."""
    have = local.stat().st_size if local.exists() else 0
    if have >= size:
        return
    fs, path = _resolve(url)
    with _named("read", url):
        data: bytes = fs.cat_file(path, start=have, end=size)
    local.parent.mkdir(parents=True, exist_ok=True)
    with local.open("ab") as file:
        file.write(data)


def remove(url: str) -> None:
    """Removes a file; nothing if there is none. Raises OSError."""
    fs, path = _resolve(url)
    with _named("remove", url):
        for name in (path, _previous(path)):
            if fs.exists(name):
                fs.rm_file(name)


def remove_tree(url: str) -> None:
    """Removes a directory as far as it can."""
    fs, path = _resolve(url)
    with suppress(Exception):
        fs.rm(path, recursive=True)


def list_files(directory: str) -> dict[str, FileFacts]:
    """The files in a directory by name, without hidden ones; none if it does not exist."""
    fs, path = _resolve(directory)
    with _named("list", directory):
        fs.invalidate_cache()
        try:
            found = fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
    return _facts(found, path)


def find_files(directory: str) -> dict[str, FileFacts]:
    """The files in and below a directory, by their names below it, without hidden ones."""
    fs, path = _resolve(directory)
    with _named("list", directory):
        fs.invalidate_cache()
        found = fs.find(path, detail=True) if fs.exists(path) else {}
    return _facts(list(found.values()), path)


def _resolve(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there. Raises ConfigError that says what to install, or OSError."""
    scheme = url.partition("://")[0]
    remedy = _EXTRAS.get(scheme, f"install fsspec with what it needs for {scheme}")
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigError(f"{url}: fsspec is not installed: {remedy}") from error
    try:
        fs, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {_first_line(error)}: {remedy}") from error
    except Exception as error:
        # Arrow's client of HDFS, which is there where hdfs-native is not, needs libraries of Hadoop's.
        raise OSError(f"cannot reach {url}: {_first_line(error)} ({remedy})") from error
    _kept.add(fs)
    return fs, str(path)


@contextmanager
def _named(action: str, url: str) -> Iterator[None]:
    """Turns the errors of any file system into an OSError that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"cannot {action} {url}: there is no such file") from error
    except Exception as error:
        raise OSError(f"cannot {action} {url}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Java's messages go on with a stack, which hdfs-native writes as one line."""
    lines = str(error).replace("\\n", "\n").replace("\\t", " ").splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)


def _rename(fs: Any, temporary: str, path: str) -> None:
    if _renames_over(fs):
        fs.mv(temporary, path, overwrite=True)
        return
    # Where a file in the way forbids it, that one steps aside first, and readers know where to.
    previous = _previous(path)
    if fs.exists(path):
        if fs.exists(previous):
            fs.rm_file(previous)
        fs.mv(path, previous)
    fs.mv(temporary, path)
    if fs.exists(temporary) or not fs.exists(path):
        raise OSError("it could not be renamed")  # WebHDFS does not say so itself
    if fs.exists(previous):
        fs.rm_file(previous)


def _remove_abandoned(fs: Any, parent: str, name: str) -> None:
    fs.invalidate_cache()
    found = {str(info["name"]).rpartition("/")[2]: _modified_ns(info) for info in fs.ls(parent, detail=True)}
    for one in abandoned(name, found, found[name]):
        fs.rm_file(f"{parent}/{one}")


def _renames_over(fs: Any) -> bool:
    return type(fs).__module__.partition(".")[0] == "hdfs_native" or "file" in _protocols(fs)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _previous(path: str) -> str:
    parent, _, name = path.rpartition("/")
    return f"{parent}/.{name}.previous"


def _facts(found: list[dict[str, Any]], directory: str) -> dict[str, FileFacts]:
    root = directory.rstrip("/") + "/"
    files = {}
    for info in found:
        name = str(info["name"]).removeprefix(root)
        if info["type"] == "file" and not any(part.startswith(".") for part in name.split("/")):
            files[name] = FileFacts(_modified_ns(info), int(info["size"] or 0))
    return files


def _modified_ns(info: dict[str, Any]) -> int:
    for key, unit in _TIMES.items():
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e9)
        if isinstance(value, int | float):
            return int(value * unit)
    return 0
