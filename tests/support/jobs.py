"""Runs a script on several processes, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import second_device
from time_limits import within

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
# Keras 3 imports scikit-learn and matplotlib wherever they are installed: a third of the time in which a rank starts.
HIDDEN = Path(__file__).with_name("hidden")


def run_job(
    script: Path,
    ranks: int,
    *arguments: str,
    options: tuple[str, ...] = (),
    timeout: float = 250.0,
    expect: int | None = 0,
    whole: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on `ranks` processes with the launcher; `expect` is the exit code (None: any but 0). `whole`: with
    all that is installed, for scripts that need what is hidden otherwise."""
    launcher = [sys.executable, "-m", "tfcollective", "run", "-np", str(ranks), *options]
    program = [second_device.__file__] if second_device.asked_for({**os.environ, **environment}) else []
    command = [*launcher, sys.executable, *program, str(script), *arguments]
    path = os.environ.get("PYTHONPATH", "")
    if not whole:
        environment["PYTHONPATH"] = os.pathsep.join([str(HIDDEN), environment.get("PYTHONPATH", path)])
    done = subprocess.run(
        command,
        env={**os.environ, **QUIET, **environment},
        capture_output=True,
        text=True,
        timeout=within(timeout),
        check=False,
    )
    fine = done.returncode == expect if expect is not None else done.returncode != 0
    assert fine, f"exit code {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done
