"""The number of cores that this process may use. ``native/base/cpu_quota.h`` reads the same for a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfcollective._base.machine.control_groups import PROC, quota_cores

# The variables by which numeric libraries and TensorFlow size their thread pools.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def available_cores() -> int:
    """The cores that the scheduler lets us run on, or fewer when the container has a quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = quota_cores(PROC)
    return max(1, cores if quota is None else min(cores, quota))


def thread_variables(share: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that size the thread pools of a rank with ``share`` cores; what ``environ`` sets stays."""
    return {name: str(share) for name in THREAD_VARIABLES if name not in environ}
