"""``tfcollective dump``: the stacks of all ranks of a running job."""

from __future__ import annotations

import json

import click

from tfcollective._base.settings import Settings
from tfcollective._cli.local_jobs import LocalJobs
from tfcollective._launch.report.stacks import stack_document, stack_lines


@click.command(
    short_help="Shows where each rank of a job is.",
    epilog="""\b
Examples:
  tfcollective dump job-1f2e3d4c
  tfcollective dump --json job-1f2e3d4c | python -m json.tool""",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with all frames.")
@click.argument("job")
def dump(as_json: bool, job: str) -> int:
    """Shows the stacks of all processes of JOB and what they do: compute, wait, swap, or are stopped.

    Equal stacks are shown once, the rarest first: a rank for which others wait stands on top. The job goes on. JOB is
    the name that `tfcollective status` shows of a running job of this machine; its ranks may be on several hosts."""
    tasks = LocalJobs(Settings.load().jobs_directory()).dump(job)
    if as_json:
        click.echo(json.dumps(stack_document(job, tasks), indent=2))
    elif not tasks:
        click.echo(f"{job}: none of its processes runs now")
    for line in () if as_json else stack_lines(tasks):
        click.echo(line)
    return 0
