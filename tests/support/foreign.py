"""Pythons that have other engines, and a path that leads them to this tfcollective and to nothing else of ours."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

import tfcollective

ROOT = Path(__file__).resolve().parents[2]


@cache
def python_with(engine: str, module: str) -> str:
    """The interpreter of the environment that ``tools/baselines.sh`` makes; skips the test where there is none."""
    path = Path(os.environ.get(f"ENGINES_{engine.upper()}_PYTHON", ROOT / ".venv" / engine / "bin" / "python"))
    if not path.exists():
        pytest.skip(f"needs {module} in .venv/{engine}: run tools/baselines.sh")
    done = subprocess.run([str(path), "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{path} has no {module}: run tools/baselines.sh")
    return str(path)


def only_tfcollective(folder: Path) -> str:
    """A folder for PYTHONPATH in which there is tfcollective, and not what is installed beside it."""
    link = folder / "tfcollective"
    if not link.exists():
        link.symlink_to(Path(tfcollective.__file__).parent)
    return str(folder)
