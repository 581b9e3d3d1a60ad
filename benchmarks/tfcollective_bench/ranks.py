"""Commands that start ranks, and what their environment is: the same for every benchmark. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tfcollective
from tfcollective._base.machine.cores import THREAD_VARIABLES, available_cores
from tfcollective._base.settings import identity_variables
from tfcollective_bench import external

__all__ = [
    "EXTERNAL_VARIABLES",
    "clean",
    "external_command",
    "horovod_command",
    "our_command",
    "thread_variables",
    "working_folder",
]

#: Environment that would make a rank think that it belongs to another world.
EXTERNAL_VARIABLES = (*identity_variables(), "TF_CONFIG")
_EXTERNAL_PREFIXES = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_")
_OP_TIMEOUT_S = 60.0


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without variables that would tell a process that it belongs to another world."""
    return {
        name: value
        for name, value in environ.items()
        if name not in EXTERNAL_VARIABLES and not name.startswith(_EXTERNAL_PREFIXES)
    }


def our_command(ranks: int, module: str, arguments: Sequence[str], transport: str = "auto") -> list[str]:
    """`module` on so many ranks of this host, started by our launcher."""
    launcher = [sys.executable, "-m", "tfcollective", "run", "-np", str(ranks), "--no-prefix"]
    options = ["--transport", transport, "--op-timeout", f"{_OP_TIMEOUT_S:g}", "--stall-warning", "0"]
    return [*launcher, *options, "-m", module, *arguments]


def external_command(python: str, module: str) -> list[str]:
    """`module` of this package under a Python that has not installed it."""
    package = Path(tfcollective.__file__).resolve().parent
    return [python, str(Path(external.__file__).resolve()), str(package), module]


def horovod_command(python: str, ranks: int, module: str, arguments: Sequence[str]) -> list[str]:
    """`module` on so many ranks of this host, started by Horovod's launcher, with Gloo."""
    launcher = [python, "-m", "horovod.runner.launch", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    return [*launcher, *external_command(python, module), *arguments]


def thread_variables(ranks: int) -> Mapping[str, str]:
    """Returns the variables for a rank's share of the cores as threads, at least one; no GPU, and no greetings."""
    threads = str(max(1, available_cores() // ranks))
    return {**dict.fromkeys(THREAD_VARIABLES, threads), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def working_folder() -> str | None:
    """Returns the folder in which ranks run; None: the current one. ``python -m`` looks in its folder first: in a
    checkout it would find the source tree instead of the package that runs here, and beside that package what is
    installed for another Python."""
    here, home = Path.cwd(), Path(tfcollective.__file__).resolve().parents[1]
    return os.sep if here != home and (here / "tfcollective").is_dir() else None
