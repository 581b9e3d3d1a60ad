"""The processes that a dead agent of this machine has left: they have the job id in their environment."""

from __future__ import annotations

import contextlib
import os

import psutil

from tfcollective._base.settings import variable

_WAIT_S = 2.0
_ROUNDS = 3  # a process may start another while we look


def end_processes_of(job_id: str) -> int:
    """Kills every process of this user that has the job id in its environment: what a dead agent has left. Returns how
    many there were."""
    total = 0
    for _ in range(_ROUNDS):
        found = [process for process in psutil.process_iter() if _belongs(process, job_id)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, _WAIT_S)
        total += len(found)
        if not found:
            break
    return total


def _belongs(process: psutil.Process, job_id: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return process.environ().get(variable("job_id")) == job_id and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False  # another user's, or gone
