"""``tfcollective logs`` and ``tfcollective kill``: jobs that go on without the process that has submitted them."""

from __future__ import annotations

import click

from tfcollective.launch.registry import find_manager

__all__ = ["kill", "logs"]


@click.command(
    short_help="Prints all that a job on YARN has printed.",
    epilog="""\b
Examples:
  tfcollective logs application_1763000000000_0042""",
)
@click.argument("job")
def logs(job: str) -> int:
    """Prints all that the processes of JOB have printed, also when it has ended.

    JOB is the id of an application on YARN.
    """
    return find_manager(job).show_logs(job)


@click.command(
    short_help="Ends a job on YARN.",
    epilog="""\b
Examples:
  tfcollective kill application_1763000000000_0042""",
)
@click.argument("job")
def kill(job: str) -> int:
    """Ends JOB, wherever it was submitted, and returns when it has ended.

    JOB is the id of an application on YARN. One that runs on this machine ends with its launcher: Ctrl-C.
    """
    find_manager(job).kill(job)
    return 0
