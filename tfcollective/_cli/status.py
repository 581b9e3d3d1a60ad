"""``tfcollective status``, ``logs`` and ``kill``: this user's running jobs, and those that a platform keeps."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping

import click

from tfcollective._base.codec import to_document
from tfcollective._base.settings import Settings
from tfcollective._cli.local_jobs import LocalJobs, answers
from tfcollective._control.records import JobRecord, running_jobs
from tfcollective._control.snapshot import JobSnapshot, TaskView
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
    jobs = [one for one in answered if one[0].job_id in running or one[2] is None]
    if as_json:
        click.echo(json.dumps([_document(*one) for one in jobs], indent=2))
    elif not jobs:
        click.echo("no job of yours is running on this machine")
    else:
        for one in jobs:
            _print_job(*one)
    return 0


def _document(record: JobRecord, job: JobSnapshot, unreachable: str | None) -> Mapping[str, object]:
    about = {"pid": record.pid, "command": list(record.command), "started": record.created}
    return {**to_document(job), **about, "unreachable": unreachable}


def _manager(job: str) -> JobManager:
    """Returns the manager to ask about this job: a running job of this machine comes first."""
    here = LocalJobs(Settings.load().jobs_directory())
    return here if here.owns(job) else find_manager(job)


def _show_one(found: JobDescription, as_json: bool) -> int:
    if as_json:
        known = {} if found.status is None else to_document(found.status)
        click.echo(json.dumps([{**known, "platform": dict(found.facts)}], indent=2))
        return 0
    for name, text in found.facts.items():
        click.echo(f"{name}: {text}")
    if found.status is not None:
        _print_table(found.status)
    return 0


def _print_job(record: JobRecord, job: JobSnapshot, unreachable: str | None) -> None:
    click.echo(f"{job.job} (pid {record.pid}): {shlex.join(record.command)}")
    _print_table(job)
    if unreachable is not None:
        click.echo(f"it does not answer (is process {record.pid} stopped?): {unreachable}")


def _print_table(job: JobSnapshot) -> None:
    """Prints a table of ranks: in a terminal that is too narrow, cells wrap; elsewhere lines are as long as needed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for task in job.all_tasks:
        table.add_row(*(Text(cell) for cell in _row(job, task)))  # a cell may have brackets, which are no markup
    console = Console()
    if not console.is_terminal:
        console.width = _UNLIMITED
    console.print(table)
    for line in elastic_lines(job):
        click.echo(line)


def elastic_lines(job: JobSnapshot) -> Iterator[str]:
    """Describes the world of an elastic job and its changes; yields nothing for other jobs."""
    if not job.rules.elastic:
        return
    waits = f"; generation {job.pending} follows when all have come" if job.pending else ""
    possible = f"{job.min_size} or more" if job.max_size is None else f"{job.min_size} to {job.max_size}"
    yield f"{describe_size(len(job.members))}, {possible} are possible{waits}"
    for change in job.changes:
        yield f"  {time.strftime('%H:%M:%S', time.localtime(job.calendar(change.at)))} {describe_change(change)}"
    for task, why in job.leaving.items():
        yield f"  {task} is to leave: {why}"


def _row(job: JobSnapshot, task: TaskView) -> tuple[str, ...]:
    rank = job.rank_of(task)
    return (
        "" if rank is None else str(rank),
        str(task.task),
        task.host or task.node,
        str(task.pid or ""),
        task.state.value,
        str(task.info.get("completed", "")),
        "none" if task.last_heartbeat is None else f"{job.at - task.last_heartbeat:.0f} s ago",
        describe_info(task.info),
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
