"""The command line: parses, calls, and turns results and errors into exit codes. Nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main", "run_main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """``tfcollective ARGUMENTS``; returns the exit code."""
    from tfcollective.cli.app import invoke

    return invoke("tfcollective", sys.argv[1:] if arguments is None else arguments)


def run_main(arguments: Sequence[str] | None = None) -> int:
    """``tfcrun ARGUMENTS``, which is ``tfcollective run ARGUMENTS``; returns the exit code."""
    from tfcollective.cli.app import invoke

    given = sys.argv[1:] if arguments is None else arguments
    return invoke("tfcrun", given, command="run")
