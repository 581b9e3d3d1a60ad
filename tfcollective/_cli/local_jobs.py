"""The jobs that were started on this machine and still run: how commands ask for them, and end them."""

from __future__ import annotations

import select
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tfcollective._base.errors import CoordinatorError, LaunchError
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import DumpedTask, Status
from tfcollective._control.records import JobRecord, open_owner, running_jobs
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._launch.launcher import JobDescription, JobManager

_END_S = 120.0  # for the grace of the ranks, and for what the launcher clears away after them


class LocalJobs(JobManager):
    """The user's running jobs on this host, by the names that ``tfcollective status`` shows.

    Args:
        directory: where their records are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def owns(self, job: str) -> bool:
        """See :meth:`JobManager.owns`. False once it has ended."""
        return self._found(job) is not None

    def describe(self, job: str) -> JobDescription:
        """See :meth:`JobManager.describe`."""
        record = self.record(job)
        ((_, snapshot, unreachable),) = answers([record])
        facts = {"job": job, "launcher": f"process {record.pid}", "command": shlex.join(record.command)}
        if record.log_dir:
            facts["output"] = record.log_dir
        if unreachable is not None:
            facts["coordinator"] = f"does not answer: {unreachable}"
        return JobDescription(facts, snapshot)

    def show_logs(self, job: str) -> int:
        """See :meth:`JobManager.show_logs`: one file after the other, each under its name, without empty ones."""
        record = self.record(job)
        if not record.log_dir:
            raise LaunchError(
                f"{job}: its output is shown by its launcher (process {record.pid}) and kept nowhere: start a job with "
                "--log-dir DIR to have the output of each rank in a file, too"
            )
        files = [path for name in ("stdout", "stderr") for path in Path(record.log_dir).glob(f"*/{name}")]
        for path in sorted(files, key=lambda path: (path.parent.name, path.name != "stdout")):
            printed = path.read_bytes()
            if printed:
                click.echo(f"==> {path} <==")
                click.echo(printed, nl=False)
        return 0

    def kill(self, job: str) -> None:
        """See :meth:`JobManager.kill`: as SIGTERM to its launcher does, so that its ranks have their grace."""
        record = self.record(job)
        with open_owner(self._directory, record) as owner:
            if owner is None:
                return  # it has ended just now
            signal.pidfd_send_signal(owner, signal.SIGTERM)
            if not select.select([owner], [], [], _END_S)[0]:
                raise LaunchError(
                    f"{job}: its launcher (process {record.pid}) got SIGTERM, and has not ended within {_END_S:.0f} s"
                )

    def dump(self, job: str) -> tuple[DumpedTask, ...]:
        """The stacks of all processes of the job. Raises LaunchError if it does not run, CoordinatorError if its
        launcher does not answer."""
        record = self.record(job)
        with CoordinatorClient(record.coordinator, record.key, record.job_id) as client:
            return client.dump()

    def record(self, job: str) -> JobRecord:
        """The record of a running job; LaunchError when it is none."""
        record = self._found(job)
        if record is None:
            raise LaunchError(
                f"{job}: no job of that name runs on this machine: `tfcollective status` lists those that do"
            )
        return record

    def _found(self, job: str) -> JobRecord | None:
        return next((record for record in running_jobs(self._directory) if record.job_id == job), None)


def answers(records: Sequence[JobRecord]) -> Iterator[tuple[JobRecord, JobSnapshot, str | None]]:
    """Yields each job with its snapshot, which has no tasks where its coordinator gave no answer, and why that is: it
    may have just ended."""
    for record in records:
        with CoordinatorClient(record.coordinator, record.key, record.job_id) as client:
            try:
                yield record, client.call(Status()), None
            except CoordinatorError as error:
                yield record, JobSnapshot(record.job_id, ()), str(error)
