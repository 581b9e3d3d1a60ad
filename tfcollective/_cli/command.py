"""Turns what the user typed after the options into a command that can be run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfcollective._base.errors import ConfigError

_HOST = re.compile(r"[^/\s]+:\d+")
_PYTHONS = ("python", "python3")
_NEEDED = {
    "horovod": (
        "horovod",
        """Horovod is not installed for this Python. Build it beside TensorFlow 2.15 or older: \
HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation horovod==0.28.1""",
    ),
    "mpi": (
        "mpi4py",
        """mpi4py is not installed for this Python: pip install 'tfcollective[mpi]', built against the MPI whose \
mpirun is on the path""",
    ),
}


def resolve_command(command: Sequence[str], module: str | None, *, in_image: bool = False) -> tuple[str, ...]:
    """The command of every rank; ConfigError with a clear message when it cannot run.

    ``-m MODULE ARGS`` and a bare ``script.py`` run under the interpreter that runs tfcollective, and so does
    ``python``: the ranks need the installation that has tfcollective. A command ``in_image`` is not looked at: agents
    there replace this interpreter by the one that runs them.
    """
    if in_image:
        words = command_in_image(command, module)
        return (sys.executable, *words[1:]) if words[0] in _PYTHONS else words
    if module is not None:
        return (sys.executable, "-m", module, *command)
    if not command:
        raise ConfigError("the command to run is missing; for example: tfcollective run -np 2 python train.py")
    program, *rest = command
    if program in _PYTHONS:
        _check_script(rest)
        return (sys.executable, *rest)
    if program.endswith(".py") and not _runs_by_itself(program):
        _check_script([program])
        return (sys.executable, *command)
    found = shutil.which(program)
    if found is None and Path(program).is_file() and os.sep in program:
        raise ConfigError(f"{program} is not executable: run chmod +x on it, or name the program that runs it")
    if found is None and _HOST.fullmatch(program):
        raise ConfigError(f"command not found: {program}; if it is a host, separate the hosts of -H by commas")
    if found is None:
        raise ConfigError(f"command not found: {program}")
    if Path(found).name.startswith("python"):
        _check_script(rest)
    return tuple(command)


def command_in_image(command: Sequence[str], module: str | None) -> tuple[str, ...]:
    """The command as it is typed, for an environment that cannot be looked at from here; ConfigError when there is
    none."""
    if module is not None:
        return ("python", "-m", module, *command)
    if not command:
        raise ConfigError("the command to run in the image is missing; for example: -- python train.py")
    return ("python", *command) if command[0].endswith(".py") else tuple(command)


def _runs_by_itself(program: str) -> bool:
    """True if a ``.py`` file names its interpreter and the system would find it: a file of the working directory is
    found only by a path. The executable bit alone says nothing, since some file systems give it to every file."""
    if os.sep not in program and Path(program).exists():
        return False
    found = shutil.which(program)
    if found is None:
        return False
    try:
        with Path(found).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:  # one that may be run, but not read
        return True


def _check_script(arguments: Sequence[str]) -> None:
    """The script of a Python command line has to exist; options before it (``-c``, ``-m``, ...) end the check."""
    if arguments and not arguments[0].startswith("-") and not Path(arguments[0]).exists():
        raise ConfigError(f"the script {arguments[0]} does not exist")


def check_engine(engine: str, command: Sequence[str]) -> None:
    """ConfigError that says what to install, if the ranks run under this interpreter and it lacks the engine.

    What another interpreter has shows when the ranks import it.
    """
    module, advice = _NEEDED.get(engine, ("", ""))
    if module and command[0] == sys.executable and importlib.util.find_spec(module) is None:
        raise ConfigError(f"--engine {engine}: {advice}")
