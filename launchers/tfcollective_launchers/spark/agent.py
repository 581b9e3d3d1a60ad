"""The process that a task holds: an agent that ends with its task.

The first line of stdin are its settings, the job key among them. Nothing follows: the end of stdin means that the task
has ended, however that came.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tfcollective.launcher import (
    ConfigError,
    ExitCode,
    NodeSettings,
    TfCollectiveError,
    decode,
    heed,
    say,
    serve_container,
)


def main() -> int:
    """Returns the exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return ExitCode.LOST
    heed((signal.SIGHUP,))
    try:
        settings = decode(line, NodeSettings, "the node's settings")
        threading.Thread(target=_end_with_task, name="tfc-task", daemon=True).start()
        return serve_container(settings)
    except TfCollectiveError as error:
        say(str(error))
        return ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.INTERNAL


def _end_with_task() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(main())
