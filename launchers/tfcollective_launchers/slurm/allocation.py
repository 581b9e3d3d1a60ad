"""The allocation in which this process runs, as SLURM's variables describe it: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective.launcher import ConfigError, Host, expand_hosts

_JOB, _NODES, _TASKS = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"
_RESTARTS = "SLURM_RESTART_COUNT"
_STEP, _STEP_TASKS = "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"
_COUNT = re.compile(r"([1-9][0-9]*)(?:\(x([1-9][0-9]*)\))?")
# srun takes most of its options from variables, too, and sbatch and salloc set them for the tasks of the job: an agent
# has the whole node. These say where SLURM is, and who we are.
_KEPT = frozenset(
    ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SLURM_DEBUG", "SLURM_SACK_KEY", _JOB)
)


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of SLURM's.

    Attributes:
        job_id: its number.
        hosts: the nodes, and how many tasks SLURM has given to each.
        restarts: how often SLURM has started it again.
    """

    job_id: str
    hosts: tuple[Host, ...]
    restarts: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation | None:
        """Returns the allocation that the variables of ``sbatch`` or ``salloc`` describe; None outside of one.

        Raises ConfigError when a variable cannot be read, or this is one of several tasks of a step.
        """
        job_id, nodes = environ.get(_JOB, ""), environ.get(_NODES, "")
        if not job_id or not nodes:
            return None
        if _STEP in environ and environ.get(_STEP_TASKS, "1") != "1":
            raise ConfigError(
                f"srun has started this launcher {environ[_STEP_TASKS]} times: start it once, without srun, in the "
                "batch script; it starts an agent on each node by itself"
            )
        try:
            names = expand_hosts(nodes)
        except ConfigError as error:
            raise ConfigError(f"{_NODES}: {error}") from error
        counts = task_counts(environ.get(_TASKS, f"1(x{len(names)})"))
        if len(counts) != len(names):
            raise ConfigError(f"{_TASKS}={environ[_TASKS]} does not fit the {len(names)} nodes of {_NODES}={nodes}")
        restarts = environ.get(_RESTARTS, "0")
        if not restarts.isdecimal():
            raise ConfigError(f"{_RESTARTS}: expected a number, got {restarts!r}")
        return cls(job_id, tuple(map(Host, names, counts)), int(restarts))


def task_counts(text: str) -> list[int]:
    """The numbers of ``SLURM_TASKS_PER_NODE``: ``2(x3),1`` is 2, 2, 2, 1. ConfigError if it is none."""
    counts: list[int] = []
    for word in text.split(","):
        found = _COUNT.fullmatch(word)
        if found is None:
            raise ConfigError(f"{_TASKS}: expected numbers such as 2(x3),1, got {text!r}")
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def environment_of_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for an srun that starts an agent: without those by which the job's own options would count."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SRUN_", "SBATCH_", "SALLOC_"))
    }
