"""The command line: parses, calls, and turns results and errors into exit codes. Nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["check_hadoop_main", "main", "run_main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """``tfcollective ARGUMENTS``; returns the exit code."""
    _end_on_sigterm()
    from tfcollective._cli.app import invoke

    return invoke("tfcollective", sys.argv[1:] if arguments is None else arguments)


def run_main(arguments: Sequence[str] | None = None) -> int:
    """``tfcrun ARGUMENTS``, which is ``tfcollective run ARGUMENTS``; returns the exit code."""
    _end_on_sigterm()
    from tfcollective._cli.app import invoke

    given = sys.argv[1:] if arguments is None else arguments
    return invoke("tfcrun", given, command="run")


def check_hadoop_main(arguments: Sequence[str] | None = None) -> int:
    """``check_hadoop_env ARGUMENTS``, which is ``tfcollective check --launcher yarn ARGUMENTS``, and a last line that
    says how it went; returns the exit code."""
    from tfcollective._cli.app import invoke

    given = sys.argv[1:] if arguments is None else arguments
    code = invoke("check_hadoop_env", ["--launcher", "yarn", *given], command="check")
    sys.stdout.write(f"Hadoop setup: {'OK' if code == 0 else 'KO'}\n")
    return code


def _end_on_sigterm() -> None:
    """Lets SIGTERM end this process even as process 1 of a container, where it has no default action: before the
    imports, and in every wait that does not handle the signal itself."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
