"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_cores", "quota_cores"]

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """The cores that the scheduler lets us run on, or fewer when the container has a quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota = quota_cores(_CPU_MAX.read_text("ascii"))
    except OSError:
        quota = None  # no control group of version 2, so no quota to respect
    return max(1, cores if quota is None else min(cores, quota))


def quota_cores(cpu_max: str) -> int | None:
    """The whole cores that a ``cpu.max`` ("quota period" or "max period") allows, or None for no limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))
