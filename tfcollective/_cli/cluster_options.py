"""Options of ``tfcollective run`` that more than one cluster takes, with the same meaning on each."""

from __future__ import annotations

from tfcollective._cli.groups import option

QUEUE = option(
    *("--queue", "--partition", "queue"),
    metavar="NAME",
    help="Queue, or partition, to submit to. [the cluster's default]",
)
JOB_NAME = option("--job-name", metavar="NAME", help="Name of the job there. [tfcollective]")
ALLOCATION_TIMEOUT = option(
    "--allocation-timeout",
    type=float,
    metavar="S",
    help="Limit for the cluster to grant all that the job needs. [600; SLURM: none]",
)
DETACH = option("--detach", is_flag=True, help="Return once the job runs (SLURM: is submitted); it continues.")

#: Those that stand under "Clusters" in the help, and not under the name of one.
SHARED = (QUEUE, JOB_NAME, ALLOCATION_TIMEOUT, DETACH)
