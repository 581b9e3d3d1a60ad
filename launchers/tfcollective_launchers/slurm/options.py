"""The options of jobs on SLURM, besides those of every job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from tfcollective.launcher import (
    FLAG,
    LINE,
    WORDS,
    Options,
    count,
    option,
    shared_options,
)

own = partial(option, "SLURM")


@dataclass(frozen=True)
class SlurmOptions(Options):
    """The options for SLURM; inside an allocation only ``srun_args``, ``requeue`` and ``python`` have an effect."""

    partition: str | None = shared_options.queue(LINE, more="On SLURM it is a partition.")
    name: str = shared_options.job_name(LINE)
    nodes: int | None = own(count(1), "Number of nodes.", "--nodes", default="as few as the ranks need")
    ntasks_per_node: int | None = own(count(1), "Ranks of each node.", "--ntasks-per-node", default="SLURM's choice")
    cpus_per_task: int | None = own(
        count(1), "Cores of each rank.", "--cpus-per-task", default="the partition's default"
    )
    gres: str | None = own(LINE, "Resources of each node, such as gpu:4.", "--gres", metavar="LIST")
    gpus_per_node: int | None = own(count(1), "GPUs of each node.", "--gpus-per-node")
    mem: str | None = own(LINE, "Memory of each node.", "--mem", metavar="SIZE", default="the partition's default")
    time: str | None = own(
        LINE, "Time limit: MINUTES, H:MM:SS or D-HH:MM:SS.", "--time", metavar="T", default="the partition's default"
    )
    account: str | None = own(LINE, "Account to charge.", "--account", metavar="NAME")
    qos: str | None = own(LINE, "Quality of service.", "--qos", metavar="NAME")
    constraint: str | None = own(LINE, "Features that the nodes have to have.", "--constraint", metavar="LIST")
    output: str | None = own(
        LINE,
        "File for the job's output.",
        "--output",
        metavar="F",
        default="slurm-JOBID.out",
        more="A relative path is one in the directory from which the job is submitted.",
    )
    requeue: bool = own(
        FLAG,
        "Let SLURM start the job again that was preempted or ran out of time.",
        "--requeue",
        False,
        more="So does a job that lost a node, or that SIGTERM has ended, as some seconds before its time limit.",
    )
    sbatch_args: tuple[str, ...] = own(
        WORDS,
        "Further arguments for sbatch, quoted as one.",
        "--sbatch-args",
        (),
        more='They stand after ours: `"--exclude=node7 --mail-type=FAIL"`.',
    )
    srun_args: tuple[str, ...] = own(WORDS, "Further arguments for the agents' srun, quoted as one.", "--srun-args", ())
    python: str = shared_options.remote_python(
        value=sys.executable, more="It starts the agents, and the job that is submitted."
    )
    allocation_timeout: float | None = shared_options.allocation_timeout()
    detach: bool = shared_options.detach()
    folder: str | None = own(
        LINE, "For a function: directory that the nodes see, for its files.", default="the current one"
    )
