"""The files of a function that is called in a batch job: the folder, which only its user can read, is on a file system
that this machine shares with the nodes."""

from __future__ import annotations

from pathlib import Path

from tfcollective.launcher import JobOutcome, JobSpec, decode, encode, write_private

_JOB, _OUTCOME = "job.json", "outcome.json"


def stage(folder: Path, spec: JobSpec) -> None:
    """Leaves the job for the launcher in the allocation."""
    write_private(folder / _JOB, encode(spec))


def staged(folder: Path) -> JobSpec:
    """Reads that job. Raises OSError, and ConfigError if the file is something else."""
    return decode((folder / _JOB).read_bytes(), JobSpec, "the description of the job")


def leave(folder: Path, outcome: JobOutcome) -> None:
    """Leaves the outcome, with what the function has returned on each rank, for the submitter."""
    write_private(folder / _OUTCOME, encode(outcome))


def left(folder: Path) -> JobOutcome | None:
    """Reads that outcome; None if the launcher left none."""
    try:
        data = (folder / _OUTCOME).read_bytes()
    except OSError:
        return None
    return decode(data, JobOutcome, "the outcome of the job")
