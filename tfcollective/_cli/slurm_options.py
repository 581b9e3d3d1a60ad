"""The options of ``tfcollective run`` that SLURM takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from tfcollective._cli.cluster_options import ALLOCATION_TIMEOUT, DETACH, JOB_NAME, QUEUE
from tfcollective._cli.groups import option
from tfcollective._cli.values import words

_COUNT = click.IntRange(min=1)
_SAME = ("account", "qos", "time", "gres", "gpus_per_node", "mem", "constraint", "nodes")
SLURM_OPTIONS = (
    QUEUE,
    JOB_NAME,
    option("--nodes", type=_COUNT, metavar="N", help="Number of nodes. [as few as the ranks need]"),
    option("--ntasks-per-node", type=_COUNT, metavar="N", help="Ranks of each node. [SLURM's choice]"),
    option("--cpus-per-task", type=_COUNT, metavar="N", help="Cores of each rank. [the partition's default]"),
    option("--gres", metavar="LIST", help="Resources of each node, such as gpu:4."),
    option("--gpus-per-node", type=_COUNT, metavar="N", help="GPUs of each node."),
    option("--mem", metavar="SIZE", help="Memory of each node. [the partition's default]"),
    option("--time", metavar="T", help="Time limit: MINUTES, H:MM:SS or D-HH:MM:SS. [the partition's default]"),
    option("--account", metavar="NAME", help="Account to charge."),
    option("--qos", metavar="NAME", help="Quality of service."),
    option("--constraint", metavar="LIST", help="Features that the nodes have to have."),
    option("--output", metavar="F", help="File for the job's output. [slurm-JOBID.out]"),
    option("--requeue", is_flag=True, help="Let SLURM start the job again that was preempted or ran out of time."),
    option("--sbatch-args", metavar="TEXT", help="Further arguments for sbatch, quoted as one."),
    option("--srun-args", metavar="TEXT", help="Further arguments for the agents' srun, quoted as one."),
    ALLOCATION_TIMEOUT,
    DETACH,
)


def slurm_platform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The platform's settings that the options mean."""
    return {
        **{name: options[name] for name in _SAME},
        "partition": options["queue"],
        "name": options["job_name"],
        "ntasks_per_node": options["ntasks_per_node"],
        "cpus_per_task": options["cpus_per_task"],
        "output": options["output"],
        "sbatch_args": words(options, "sbatch_args"),
        "srun_args": words(options, "srun_args"),
        "requeue": options["requeue"],
        "python": options["remote_python"] or sys.executable,
        "allocation_timeout": options["allocation_timeout"],
        "detach": options["detach"],
    }
