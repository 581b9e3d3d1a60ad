"""Environments with other engines, and a path that adds this tfcollective to them and nothing else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tfcollective

ROOT = Path(__file__).resolve().parents[2]
_OF_SKLEARN = ("sklearn", "scipy", "joblib", "threadpoolctl", "narwhals", "scipy.libs", "scikit_learn.libs")


def _environment(engine: str) -> Path:
    return Path(os.environ.get(f"ENGINES_{engine.upper()}", ROOT / ".venv" / engine))


@cache
def python_with_horovod() -> str:
    """The interpreter of the environment with Horovod that ``tools/baselines.sh`` makes; skips where there is none."""
    path = _environment("horovod") / "bin" / "python"
    if not path.exists() or subprocess.run([path, "-c", "import horovod.tensorflow"], check=False).returncode:
        pytest.skip(f"needs Horovod in {path.parents[1]}: run tools/baselines.sh")
    return str(path)


def only_tfcollective(folder: Path) -> str:
    """A folder for PYTHONPATH in which there is tfcollective and scikit-learn, and nothing else of this environment."""
    _link(folder, "tfcollective", Path(tfcollective.__file__).parent)
    spec = importlib.util.find_spec("sklearn")
    packages = Path(spec.origin).parents[1] if spec is not None and spec.origin else None
    for name in _OF_SKLEARN if packages is not None else ():
        for found in (packages / name, packages / f"{name}.py"):
            if found.exists():
                _link(folder, found.name, found)
    return str(folder)


@cache
def mpi4py_of_this_python() -> Path:
    """Where mpi4py for this Python is; skips where there is none, and without mpirun."""
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (openmpi-bin)")
    spec = importlib.util.find_spec("mpi4py")
    if spec is not None and spec.origin:
        return Path(spec.origin).parent
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = _environment("mpi") / "lib" / version / "site-packages" / "mpi4py"
    if not found.exists():
        pytest.skip(f"needs mpi4py for this Python in {_environment('mpi')}: run tools/baselines.sh")
    return found


def path_with_mpi4py(folder: Path) -> dict[str, str]:
    """The environment in which this Python has mpi4py, by a link in this folder."""
    _link(folder, "mpi4py", mpi4py_of_this_python())
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def mpirun(folder: Path, ranks: int, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of this Python on several processes of MPI."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        ["mpirun", "-np", str(ranks), "--oversubscribe", sys.executable, *command],
        env={**os.environ, **allowed, **path_with_mpi4py(folder), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def _link(folder: Path, name: str, target: Path) -> None:
    if not (folder / name).exists():
        (folder / name).symlink_to(target)
