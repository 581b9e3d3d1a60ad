"""Decides which Python a container runs, and what has to be sent for that: pure."""

from __future__ import annotations

import hashlib
import shlex
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tfcollective.launcher import ConfigError, LaunchError, environ_snapshot, first_on_path
from tfcollective_launchers.yarn.options import YarnOptions

_UNPACKED = "environment"  # the directory of an archive in a container


@dataclass(frozen=True)
class Environment:
    """The interpreter of a container, and what it needs.

    Attributes:
        interpreter: the words of a shell that start it.
        files: what to send, as skein's files.
        setup: lines of a shell that come before.
    """

    interpreter: str
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    setup: tuple[str, ...] = ()


def environment_of(python: str | None, archive: str | None) -> Environment:
    """The environment that an interpreter's path on the nodes, or an archive, stands for; ConfigError."""
    if python is not None:
        if not python.startswith("/"):
            raise ConfigError(f"yarn: python: expected an absolute path on the nodes, got {python!r}")
        return Environment(shlex.quote(python))
    assert archive is not None
    name = PurePosixPath(archive.rstrip("/")).name
    if name.endswith(".pex"):
        interpreter = f'"$PWD/{name}"'
        return Environment(interpreter, {name: _file(archive, "FILE")}, _pex_setup(interpreter))
    if name.endswith(".pex.zip"):
        interpreter = f'"$PWD/{_UNPACKED}/__main__.py"'
        return Environment(interpreter, {_UNPACKED: _file(archive, "ARCHIVE")}, _pex_setup(interpreter))
    if name.endswith((".zip", ".tar.gz", ".tgz")):
        return Environment(f'"$PWD/{_UNPACKED}/bin/python"', {_UNPACKED: _file(archive, "ARCHIVE")})
    raise ConfigError(f"yarn: archive: expected a .pex, .pex.zip, .zip, .tar.gz or .tgz file, got {archive!r}")


def _pex_setup(interpreter: str) -> tuple[str, ...]:
    """A pex that can make a virtual environment of itself does: its ``sys.executable`` then finds its packages, too."""
    return (
        'export PEX_ROOT="$PWD/.pex"',
        f"if PEX_VENV=1 {interpreter} -c pass 2>/dev/null; then export PEX_VENV=1; fi",
    )


def source_url(source: str) -> str:
    """Returns the URL of a file for YARN; a path is one on this host."""
    if "://" in source:
        return source
    if not source.startswith("/"):
        raise ConfigError(f"yarn: expected an absolute path or a URL, got {source!r}")
    return f"file://{source}"


def _file(source: str, kind: str) -> dict[str, str]:
    """Describes a file: nodes keep one of the cluster's file system for this user's next application."""
    return {"source": source_url(source), "type": kind, "visibility": "PRIVATE" if "://" in source else "APPLICATION"}


def pack_directories(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """``files`` with every directory packed into an archive in ``folder``, whose contents appear under the target's
    name. Paths become absolute; ConfigError when there is nothing."""
    packed = {}
    for target, source in files.items():
        if "://" in source:
            packed[target] = source
            continue
        path = Path(source).absolute()
        if not path.exists():
            raise ConfigError(f"yarn: files: {target}: {source} does not exist")
        packed[target] = str(_zip(path, folder / f"{target}.zip") if path.is_dir() else path)
    return packed


def _zip(directory: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(directory.rglob("*")):
            if "__pycache__" not in path.parts:
                file.write(path, path.relative_to(directory))
    return archive


def archives_of(options: YarnOptions) -> dict[str, str]:
    """The packed environment by node label; none when there is an interpreter on the nodes.

    Without either the running environment is packed: that takes minutes the first time.
    """
    if options.python is not None:
        return {}
    if isinstance(options.archive, str):
        return {"": _local(options.archive)}
    if options.archive is not None:
        return {str(getattr(label, "value", label)): _local(path) for label, path in options.archive.items()}
    return {"": _pack_environment(options.pack)}


def _local(source: str) -> str:
    if "://" in source:
        return source
    path = Path(source).absolute()
    if not path.exists():
        raise ConfigError(f"yarn: archive: {source} does not exist")
    return str(path)


def _pack_environment(more: Mapping[str, Any]) -> str:
    """Packs it into this user's cache, where it stays as long as the environment has the same packages.

    Not onto HDFS, where cluster-pack would put it: that takes libraries of Hadoop's, and skein sends the file anyway.
    """
    try:
        import cluster_pack
    except ImportError as error:
        raise ConfigError(
            f"yarn: no python (a path on the nodes) and no archive was given, and cluster-pack, which would pack this "
            f"environment, cannot be used ({error}): give one, or pip install 'tfcollective[yarn]'"
        ) from error
    try:
        # With its tools, a pex can make a virtual environment of itself, which containers ask it for.
        asked = {"package_path": str(_cache_file()), "include_pex_tools": True, **more}
        with first_on_path(sysconfig.get_path("scripts")):  # it calls pex, and this environment need not be activated
            place, _ = cluster_pack.upload_env(**asked)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise LaunchError(
            f"cluster-pack could not pack this environment ({lines[-1].strip()}): give a packed one, or a python on "
            "the nodes; for wheels that no package index has, give --package-index DIRECTORY, in Python "
            "pack={'additional_indexes': [DIRECTORY]}"
        ) from error
    return str(place)


def _cache_file() -> Path:
    environ = environ_snapshot()
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfcollective" / "environments"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"the environment cannot be packed into {cache}: {error}") from error
    return cache / f"{hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]}.pex"
