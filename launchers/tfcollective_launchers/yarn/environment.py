"""Which Python a container runs, and what has to be sent for that: pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tfcollective.errors import ConfigError

__all__ = ["Environment", "environment_of", "source_url"]

_UNPACKED = "environment"  # the directory of an archive in a container


@dataclass(frozen=True)
class Environment:
    """How to get at an interpreter in a container.

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
            raise ConfigError(f"yarn: python: an absolute path on the nodes, not {python!r}")
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
    raise ConfigError(f"yarn: archive: a .pex, .pex.zip, .zip, .tar.gz or .tgz file, not {archive!r}")


def _pex_setup(interpreter: str) -> tuple[str, ...]:
    """A pex that can make a virtual environment of itself does: its ``sys.executable`` then finds its packages, too."""
    return (
        'export PEX_ROOT="$PWD/.pex"',
        f"if PEX_VENV=1 {interpreter} -c pass 2>/dev/null; then export PEX_VENV=1; fi",
    )


def source_url(source: str) -> str:
    """Where a file is, as YARN wants it: a path is one here."""
    if "://" in source:
        return source
    if not source.startswith("/"):
        raise ConfigError(f"yarn: an absolute path or a URL, not {source!r}")
    return f"file://{source}"


def _file(source: str, kind: str) -> dict[str, str]:
    """What is on a file system of the cluster already stays on the nodes for this user's next application."""
    return {"source": source_url(source), "type": kind, "visibility": "PRIVATE" if "://" in source else "APPLICATION"}
