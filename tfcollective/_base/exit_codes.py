"""The exit codes of our programs where they do not pass on a worker's own: the only table."""

from __future__ import annotations

import signal
from enum import IntEnum

from tfcollective._base.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    ConfigError,
    CoordinatorError,
    PeerLostError,
    RendezvousError,
    TfCollectiveError,
    UnsupportedError,
)

# A process that signal n ended counts as one that returned this much more than n, as in a shell.
SIGNAL_BASE = 128


class ExitCode(IntEnum):
    """Exit codes of our programs. Those with a name in ``sysexits.h`` have its number."""

    OK = 0
    USAGE = 64  # wrong usage or configuration
    NOT_STARTED = 69  # tasks did not start in time
    INTERNAL = 70
    LOST = 75  # the coordinator, a host or another rank was lost: trying again may help


# The first row that fits decides.
_OF_ERRORS: tuple[tuple[type[TfCollectiveError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (UnsupportedError, ExitCode.USAGE),
    (RendezvousError, ExitCode.NOT_STARTED),
    (CoordinatorError, ExitCode.LOST),
    (PeerLostError, ExitCode.LOST),
    (CollectiveAbortedError, ExitCode.LOST),
    (CollectiveTimeoutError, ExitCode.LOST),
    (TfCollectiveError, ExitCode.INTERNAL),
)


def code_of(error: TfCollectiveError) -> ExitCode:
    """Returns the exit code of a program of ours that this error ends."""
    return next(code for kind, code in _OF_ERRORS if isinstance(error, kind))


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
