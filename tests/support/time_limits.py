"""Scales limits of time to the load of the machine."""

import os
from pathlib import Path

# On a shared machine a process may not run for so long, even if the load seems low.
STALL_S = 3.0


def within(seconds: float) -> float:
    """`seconds` of an idle machine, times the number of processes per core that want to run now, and one stall. An
    event that must not happen within this time has to take much longer than `seconds`."""
    return (seconds + STALL_S) * max(1.0, _wanting() / (os.cpu_count() or 1))


def _wanting() -> float:
    """How many processes want a core: within the last minute, or, if that is more, at this moment."""
    recently = os.getloadavg()[0]
    try:
        runnable = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    except OSError:
        return recently
    return max(recently, float(runnable) - 1)  # without us
