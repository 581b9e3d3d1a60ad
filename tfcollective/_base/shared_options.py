"""Options that several platforms take: each is spelt and explained once, and has the kind and the default that the
platform gives it."""

from __future__ import annotations

from functools import partial

from tfcollective._base.options import FLAG, LINE, clusters, hosting, seconds

queue = partial(
    clusters,
    text="Queue, or partition, to submit to.",
    flags="--queue --partition",
    metavar="NAME",
    default="the cluster's default",
)
job_name = partial(
    clusters,
    text="Name of the job there.",
    flags="--job-name",
    value="tfcollective",
    metavar="NAME",
    default="tfcollective",
)
allocation_timeout = partial(
    clusters,
    seconds(),
    "Limit for the cluster to grant all that the job needs.",
    "--allocation-timeout",
    default="600; SLURM: none",
)
detach = partial(clusters, FLAG, "Return once the job runs (SLURM: is submitted); it continues.", "--detach", False)
remote_python = partial(
    hosting, LINE, "Interpreter on the other hosts.", "--remote-python", metavar="PATH", default="the path of this one"
)
