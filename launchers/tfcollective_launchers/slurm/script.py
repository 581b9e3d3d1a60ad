"""The batch script that runs a job inside an allocation: pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from tfcollective.launcher import TIMING, JobSpec, job_text
from tfcollective_launchers.slurm.options import SlurmOptions

_NOTICE_S = 60  # at least


def batch_script(spec: JobSpec, options: SlurmOptions, command: tuple[str, ...] = ()) -> str:
    """Returns the script for sbatch, which runs ``command``, or else the job, on the first node of an allocation."""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _directives(spec, options)), ""]
    # exec: the launcher takes the shell's place, and gets the signals that SLURM sends to that alone.
    if command:
        return "\n".join([*lines, f"exec {shlex.join(command)}", ""])
    launcher = (options.python, "-m", "tfcollective", "job", "--launcher", "slurm")
    what = " ".join(shlex.join(spec.command).split())  # one line
    told = (f"# {spec.num_proc} ranks of: {what}", f"exec {shlex.join(launcher)} <<'JOB'", job_text(spec), "JOB", "")
    return "\n".join([*lines, *told])


def _directives(spec: JobSpec, options: SlurmOptions) -> Iterator[str]:
    yield _directive("job-name", options.name)
    yield _directive("ntasks", max(spec.num_proc, spec.max_proc or 0))
    for name in ("nodes", "ntasks_per_node", "cpus_per_task", "gpus_per_node", "gres", "mem"):
        if getattr(options, name) is not None:
            yield _directive(name.replace("_", "-"), getattr(options, name))
    for name in ("partition", "account", "qos", "time", "constraint", "output"):
        if getattr(options, name) is not None:
            yield _directive(name, getattr(options, name))
    notice = max(_NOTICE_S, math.ceil(spec.grace + TIMING.notice))
    yield f"--signal=B:TERM@{notice}"
    if options.requeue:
        yield "--requeue"
        yield "--open-mode=append"
    else:
        yield "--no-requeue"
    if spec.bounds is not None:
        yield "--no-kill"  # SLURM ends a job that loses a node, else
    yield from map(shlex.quote, options.sbatch_args)


def _directive(name: str, value: object) -> str:
    return f"--{name}={shlex.quote(str(value))}"
