"""What our programs return when they do not hand on a worker's own code: the one table."""

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
    """As far as there are names in ``sysexits.h``, the numbers are the same."""

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
    """What one of our programs returns when this error ends it."""
    return next(code for kind, code in _OF_ERRORS if isinstance(error, kind))


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
