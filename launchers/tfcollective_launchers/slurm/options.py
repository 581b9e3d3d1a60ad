"""What a job on SLURM can be given besides what every job has: checked values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfcollective.launcher import ConfigError, check_timeout, platform_options

_TEXTS = ("partition", "account", "qos", "time", "gres", "mem", "constraint", "output", "folder")
_COUNTS = ("nodes", "ntasks_per_node", "cpus_per_task", "gpus_per_node")
_WORDS = ("sbatch_args", "srun_args")


@dataclass(frozen=True)
class SlurmOptions:
    """The platform's settings. All but ``srun_args``, ``requeue`` and ``python`` are for a job that is submitted;
    inside an allocation they have no effect.

    Attributes:
        name: the name of the job.
        partition: to submit to, and likewise the others: sbatch's options of these names; None: what the cluster
            chooses.
        account: who is charged.
        qos: the quality of service.
        time: the time limit, as SLURM writes it: ``30``, ``12:00:00``, ``1-00:00:00``.
        nodes: the number of nodes.
        ntasks_per_node: of ranks.
        cpus_per_task: the cores of each rank.
        gres: of each node, such as ``gpu:4``.
        gpus_per_node: the same of GPUs alone.
        mem: the memory of each node.
        constraint: features that the nodes have to have.
        output: the file with the output; None: ``slurm-JOBID.out`` in the directory from which it is submitted.
        sbatch_args: more options of sbatch, after ours.
        srun_args: more options of the srun that starts an agent, after ours.
        requeue: whether SLURM starts the job again that was preempted, lost a node, or was asked by SIGTERM to end
            while it ran, as some seconds before the time limit.
        python: the interpreter that starts the agents, and the job that is submitted.
        allocation_timeout: how long (s) the job may wait in the queue; None: for ever.
        detach: whether to return as soon as it is submitted.
        folder: for a function: a directory that the nodes see, in which its files are kept; None: the current one.
    """

    name: str = "tfcollective"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    nodes: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    mem: str | None = None
    constraint: str | None = None
    output: str | None = None
    sbatch_args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    requeue: bool = False
    python: str = sys.executable
    allocation_timeout: float | None = None
    detach: bool = False
    folder: str | None = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, Any]) -> SlurmOptions:
        """Reads what a job says; ConfigError names what cannot be used."""
        words = {name: platform[name] for name in _WORDS if platform.get(name) is not None}
        for name, value in words.items():
            if isinstance(value, str):
                raise ConfigError(f"slurm: {name}: expected a list of words, got the text {value!r}")
        return platform_options(cls, {**platform, **{name: tuple(words[name]) for name in words}}, "slurm")

    def __post_init__(self) -> None:
        for name in ("name", "python", *_TEXTS):
            value = getattr(self, name)
            if value is None and name in _TEXTS:
                continue
            if not isinstance(value, str) or not value or "\n" in value:
                raise ConfigError(f"slurm: {name}: expected a text of one line, got {value!r}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"slurm: {name}: expected 1 or more, got {value!r}")
        for name in _WORDS:
            for word in getattr(self, name):
                if not isinstance(word, str) or "\n" in word:
                    raise ConfigError(f"slurm: {name}: expected texts of one line, got {word!r}")
        if self.allocation_timeout is not None:
            check_timeout("slurm: allocation_timeout", self.allocation_timeout)
