"""How long a promise of seconds may take here: a machine with more to do than cores keeps it later."""

import os
from pathlib import Path

# A machine that others use, too, may run a process for so long not at all, however little it seems to do.
STALL_S = 3.0


def within(seconds: float) -> float:
    """`seconds` of an idle machine, and one stall, for as many processes that want a core now as there are for each
    core. What must not happen within this has to take much longer than `seconds`."""
    return (seconds + STALL_S) * max(1.0, _wanting() / (os.cpu_count() or 1))


def _wanting() -> float:
    """How many processes want a core: within the last minute, or, if that is more, at this moment."""
    recently = os.getloadavg()[0]
    try:
        runnable = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    except OSError:
        return recently
    return max(recently, float(runnable) - 1)  # without us
