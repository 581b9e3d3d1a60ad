"""The program that a batch job runs for a function: ``python -c ... FOLDER``, see :mod:`call_folder`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tfcollective.launcher import (
    PASSED_ON,
    ConfigError,
    ExitCode,
    JobOutcome,
    TfCollectiveError,
    exit_code,
    log,
    render,
    run_job,
)
from tfcollective_launchers.slurm.call_folder import leave, staged
from tfcollective_launchers.slurm.launcher import SlurmLauncher

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *PASSED_ON)


def main() -> int:
    """Runs the job in the folder, and leaves its outcome there."""
    folder = Path(sys.argv[1])
    try:
        spec = staged(folder)
    except (OSError, ConfigError) as error:
        log.say(str(error))
        return ExitCode.USAGE
    log.configure(spec.log_level)
    try:
        outcome = run_job(SlurmLauncher(), spec, stop_signals=_SIGNALS)
    except TfCollectiveError as error:
        outcome = JobOutcome((), initialised=True, agent_failure=str(error))
    leave(folder, outcome)
    text = render(outcome)
    if text:
        log.say(text)
    return exit_code(outcome)
