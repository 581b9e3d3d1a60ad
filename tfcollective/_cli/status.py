"""``tfcollective status``, ``logs`` and ``kill``: this user's running jobs, and those that a platform keeps."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence

import click

from tfcollective._base.settings import Settings
from tfcollective._cli.local_jobs import LocalJobs, answers
from tfcollective._control.records import running_jobs
from tfcollective._launch.launcher import JobDescription, JobManager, find_manager
from tfcollective._launch.report.report import describe_change, describe_info, describe_size

_COLUMNS = ("rank", "task", "host", "pid", "state", "operations", "last heartbeat", "says")
_UNLIMITED = 1 << 16


@click.command(
    short_help="Shows your running jobs, rank by rank.",
    epilog="""\b
Examples:
  tfcollective status
  tfcollective status --json | python -m json.tool
  tfcollective status job-1f2e3d4c
  tfcollective status application_1763000000000_0042
  tfcollective status 4711
  tfcollective status default/train""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables: a list with one object per job.")
@click.argument("job", required=False)
def status(as_json: bool, job: str | None) -> int:
    """Shows your running jobs on this machine.

    For every rank it shows state, number of operations and last heartbeat; further the evaluator's figures and
    TensorBoard's address, and of an elastic job how its world has changed. With JOB it shows that one only: the name
    that this command shows, the id of an application on YARN, the number of a job on SLURM, or NAMESPACE/NAME of one
    on Kubernetes."""
    if job is not None:
        return _show_one(_manager(job).describe(job), as_json)
    directory = Settings.load().jobs_directory()
    answered = list(answers(list(running_jobs(directory))))
    running = {record.job_id for record in running_jobs(directory)}
    jobs = [job for job in answered if job["job"] in running or job["unreachable"] is None]
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
    elif not jobs:
        click.echo("no job of yours is running on this machine")
    else:
        _print_tables(jobs)
    return 0


def _manager(job: str) -> JobManager:
    """Returns the manager to ask about this job: a running job of this machine comes first."""
    here = LocalJobs(Settings.load().jobs_directory())
    return here if here.owns(job) else find_manager(job)


def _show_one(found: JobDescription, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps([{**(found.status or {}), "platform": dict(found.facts)}], indent=2))
        return 0
    for name, text in found.facts.items():
        click.echo(f"{name}: {text}")
    if found.status is not None:
        _print_table(found.status)
    return 0


def _print_tables(jobs: Sequence[Mapping[str, object]]) -> None:
    for job in jobs:
        words = job["command"]
        command = shlex.join(str(word) for word in words) if isinstance(words, list) else ""
        click.echo(f"{job['job']} (pid {job['pid']}): {command}")
        _print_table(job)
        if job["unreachable"] is not None:
            click.echo(f"it does not answer (is process {job['pid']} stopped?): {job['unreachable']}")


def _print_table(job: Mapping[str, object]) -> None:
    """Prints a table of ranks: in a terminal that is too narrow, cells wrap; elsewhere lines are as long as needed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    tasks = job["tasks"]
    for task in tasks if isinstance(tasks, list) else []:
        table.add_row(*(Text(cell) for cell in _row(task)))  # a cell may have brackets, which are no markup
    console = Console()
    if not console.is_terminal:
        console.width = _UNLIMITED
    console.print(table)
    for line in elastic_lines(job.get("elastic")):
        click.echo(line)


def elastic_lines(status: object) -> Iterator[str]:
    """Describes the world of an elastic job and its changes; ``status`` is the coordinator's part on that, None for
    other jobs."""
    if not isinstance(status, Mapping):
        return
    waits = f"; generation {status['pending']} follows when all have come" if status["pending"] else ""
    least, most = status["min_size"], status["max_size"]
    possible = f"{least} or more" if most is None else f"{least} to {most}"
    yield f"{describe_size(status['size'])}, {possible} are possible{waits}"
    for change in status["changes"]:
        at = time.strftime("%H:%M:%S", time.localtime(change["time"]))
        line = describe_change(
            change["generation"],
            change["size"],
            change["without"],
            change["with"],
            change["seconds"],
            change["phases"],
            change["cause"],
        )
        yield f"  {at} {line}"
    for task, why in status["leaving"].items():
        yield f"  {task} is to leave: {why}"


def _row(task: Mapping[str, object]) -> tuple[str, ...]:
    info, age = task["info"], task["heartbeat_age_s"]
    info = info if isinstance(info, Mapping) else {}
    operations = info.get("completed", "")
    heartbeat = f"{age:.0f} s ago" if isinstance(age, (int, float)) else "none"
    return (
        "" if task["rank"] is None else str(task["rank"]),
        str(task["task"]),
        str(task["host"] or task["node"]),
        str(task["pid"] or ""),
        str(task["state"]),
        str(operations),
        heartbeat,
        describe_info(info),
    )


@click.command(
    short_help="Prints the output of a job.",
    epilog="""\b
Examples:
  tfcollective logs job-1f2e3d4c
  tfcollective logs application_1763000000000_0042
  tfcollective logs 4711
  tfcollective logs default/train""",
)
@click.argument("job")
def logs(job: str) -> int:
    """Prints the output of all processes of JOB.

    JOB is the name that `tfcollective status` shows of a running job of this machine that has --log-dir. On clusters,
    where the job may have ended, it is the id of an application on YARN, the number of a job on SLURM, or
    NAMESPACE/NAME of one on Kubernetes.
    """
    return _manager(job).show_logs(job)


@click.command(
    short_help="Ends a job.",
    epilog="""\b
Examples:
  tfcollective kill job-1f2e3d4c
  tfcollective kill application_1763000000000_0042
  tfcollective kill 4711
  tfcollective kill default/train""",
)
@click.argument("job")
def kill(job: str) -> int:
    """Ends JOB, on a cluster from whichever machine it was submitted, and returns when it has ended.

    JOB is the name that `tfcollective status` shows of a running job of this machine, the id of an application on
    YARN, the number of a job on SLURM, or NAMESPACE/NAME of one on Kubernetes. On this machine its ranks have the
    grace between SIGTERM and SIGKILL (`--grace`), as after SIGTERM to its launcher.
    """
    _manager(job).kill(job)
    return 0
