"""Finds the environments and programs of the other libraries that ``tools/baselines.sh`` builds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tfcollective

__all__ = ["Baselines", "environment_folders", "find_baselines"]

_CHECK_S = 60.0


@dataclass(frozen=True)
class Baselines:
    """The baselines that were found; None where one is missing."""

    library: Path
    program: Path | None
    mpi_program: Path | None
    mpirun: str | None
    mpi_python: str | None
    horovod_python: str | None
    tensorflow: bool


def find_baselines(folder: str, *, mpi_python: str = "", horovod_python: str = "") -> Baselines:
    """Looks in this folder or in the usual places: ``.venv`` here, the folder of this environment, and
    ``.venv`` of the checkout that this package runs from."""
    from tfcollective._runtime.native_library.library import default_path

    folders = list(environment_folders(folder))
    return Baselines(
        library=default_path(),
        program=_first(folders, "programs/allreduce"),
        mpi_program=_first(folders, "programs/allreduce_mpi"),
        mpirun=shutil.which("mpirun"),
        mpi_python=_absolute(mpi_python) or _python(folders, "mpi", "mpi4py"),
        horovod_python=_absolute(horovod_python) or _python(folders, "horovod", "horovod"),
        tensorflow=find_spec("tensorflow") is not None,
    )


def _absolute(python: str) -> str:
    """Not resolved: the link is what tells an environment from the Python that it was made with."""
    return str(Path(python).absolute()) if python else ""


def _first(folders: list[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _python(folders: list[Path], environment: str, module: str) -> str | None:
    """The interpreter of an environment that has the module; this one counts as well."""
    found = _first(folders, f"{environment}/bin/python")
    if found is not None and _has(str(found), module):
        return str(found)
    return sys.executable if find_spec(module) is not None else None


def _has(python: str, module: str) -> bool:
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = subprocess.run([python, "-c", program], stdin=subprocess.DEVNULL, timeout=_CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def environment_folders(given: str) -> Iterator[Path]:
    """The folder given, or the usual ones: ``.venv`` here, the folder of this environment, and ``.venv`` of the
    checkout that this package runs from."""
    if given:
        yield Path(given).resolve()
        return
    yield Path.cwd() / ".venv"
    yield Path(sys.prefix).parent
    yield Path(tfcollective.__file__).resolve().parents[1] / ".venv"
