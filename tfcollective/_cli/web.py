"""``tfcollective web``: a page on a running job of this machine that was started without one."""

from __future__ import annotations

import time

import click

from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.settings import Settings
from tfcollective._cli.local_jobs import LocalJobs
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Status
from tfcollective._launch.plan.spec import AUTO_WEB, OPTIONS
from tfcollective._launch.web.watching import serving

_EACH_S = 1.0


@click.command(
    short_help="Serves a page on a running job.",
    epilog="""\b
Examples:
  tfcollective web job-1f2e3d4c
  tfcollective web --listen 10.0.0.7:8080 job-1f2e3d4c""",
)
@click.option("--listen", metavar="HOST:PORT", default=AUTO_WEB, help="Where to listen. [this machine alone, any port]")
@click.argument("job")
def web(listen: str, job: str) -> int:
    """Serves a page on JOB, and its metrics, until the job ends.

    JOB is the name that `tfcollective status` shows of a running job of this machine. A job that is started with
    `tfcollective run --web` has a page of its own, which also shows restarts and how the job ended."""
    problem = OPTIONS["web"].kind.problem(listen)
    if problem is not None:
        raise ConfigError(f"--listen: {problem}")
    record = LocalJobs(Settings.load().jobs_directory()).record(job)
    with (
        serving(listen, record.log_dir or None) as server,
        CoordinatorClient(record.coordinator, record.key, record.job_id) as client,
    ):
        try:
            while True:
                server.take(client.call(Status()))
                time.sleep(_EACH_S)  # the status has no call that waits
        except CoordinatorError as error:
            click.echo(f"{job} has ended, or does not answer: {error}", err=True)
    return 0
