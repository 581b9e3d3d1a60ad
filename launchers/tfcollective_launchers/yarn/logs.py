"""The logs of an application, by Hadoop's own command: it knows where its version keeps them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from tfcollective.clock import poll
from tfcollective.errors import LaunchError

__all__ = ["end_of_log", "logs_command", "show_logs"]

_TIMEOUT_S = 60.0
_COLLECTED_S = 20.0
_LINES = 20
# What the command adds to the lines of a log.
_MARKS = (
    *("LogType:", "LogLength:", "LogContents:", "LogLastModifiedTime:", "LogAggregationType:", "End of LogType:"),
    *("Container:", "=====", "****"),
)


def logs_command(app_id: str, files: Sequence[str] = ()) -> list[str]:
    """What prints the logs of an application: of all files, or of these."""
    return ["yarn", "logs", "-applicationId", app_id, *(("-log_files", ",".join(files)) if files else ())]


def show_logs(app_id: str) -> int:
    """Prints them; the command's exit code. Raises LaunchError when there is no command."""
    if shutil.which("yarn") is None:
        raise LaunchError("there is no command `yarn` on the PATH: it reads the logs")
    return subprocess.run(logs_command(app_id), stdin=subprocess.DEVNULL, check=False).returncode


def end_of_log(app_id: str, file: str) -> tuple[str, ...]:
    """The last lines of a file of an application that has ended; none when they cannot be had.

    YARN collects the logs when an application has ended, which takes it a while.
    """

    def look() -> tuple[str, ...] | None:
        try:
            done = subprocess.run(
                logs_command(app_id, (file,)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        lines = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith(_MARKS)]
        return tuple(lines[-_LINES:]) if done.returncode == 0 and lines else None

    return () if shutil.which("yarn") is None else poll(look, _COLLECTED_S, 1.0) or ()
