"""Records of this user's running jobs: how ``tfcollective status`` finds their coordinators.

One private directory a job, in one private directory a user. A record holds the job key, so nobody else may read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfcollective.log import get_logger
from tfcollective.private_directory import unusable
from tfcollective.topology import Endpoint

__all__ = ["JobDirectory", "JobRecord", "running_jobs", "start_ticks"]

_LOG = get_logger(__name__)
_RECORD = "record.json"
_ENDED = ("Z", "X")
_START_FIELD = 19  # counted from the state on; see proc(5)


@dataclass(frozen=True)
class JobRecord:
    """A running job.

    Attributes:
        job_id: its name.
        coordinator: where its coordinator listens.
        key: the job key.
        pid: the process that runs the coordinator.
        ticks: when that process started, in clock ticks since boot (:func:`start_ticks`): a reused pid is not taken for
            it, and setting the clock, which moves every time of day, changes nothing.
        created: the same for people, in seconds since 1970.
        command: what the job runs, for people.
    """

    job_id: str
    coordinator: Endpoint
    key: bytes = field(repr=False)
    pid: int
    ticks: int
    created: float
    command: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether the process that runs the coordinator still exists."""
        return start_ticks(self.pid) == self.ticks

    def to_json(self) -> dict[str, object]:
        """A JSON object that :meth:`from_json` reads."""
        return {
            "job": self.job_id,
            "coordinator": str(self.coordinator),
            "key": self.key.hex(),
            "pid": self.pid,
            "ticks": self.ticks,
            "created": self.created,
            "command": list(self.command),
        }

    @classmethod
    def from_json(cls, document: object) -> JobRecord:
        """Reads what :meth:`to_json` wrote; ValueError when it is something else."""
        if not isinstance(document, Mapping):
            raise ValueError("not a job record")
        command = document.get("command")
        pid, ticks, created = document.get("pid"), document.get("ticks"), document.get("created")
        if not isinstance(pid, int) or not isinstance(ticks, int) or not isinstance(created, float):
            raise ValueError("not a job record")
        if not isinstance(command, list):
            raise ValueError("not a job record")
        return cls(
            job_id=str(document.get("job")),
            coordinator=Endpoint.parse(str(document.get("coordinator"))),
            key=bytes.fromhex(str(document.get("key"))),
            pid=pid,
            ticks=ticks,
            created=created,
            command=tuple(str(word) for word in command),
        )


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it does not run (any more)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in _ENDED else int(fields[_START_FIELD])


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


class JobDirectory:
    """The private directory of one job; removed by :meth:`close`. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path, job_id: str) -> JobDirectory:
        """Makes the directory; clears away what dead jobs have left."""
        for record_path in parent.glob(f"*/{_RECORD}"):
            _read(record_path)
        path = parent / job_id
        with _explained(path):
            path.mkdir(mode=0o700)
        return cls(path)

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def publish(self, record: JobRecord) -> None:
        """Writes the record, whole or not at all, with mode 0600."""
        partial = self.path / f"{_RECORD}.new"
        with _explained(self.path):
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(record.to_json(), file)
            partial.replace(self.path / _RECORD)

    def close(self) -> None:
        """Removes the directory. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)


def running_jobs(parent: Path) -> Iterator[JobRecord]:
    """The jobs that run, oldest first. Removes the directories of those that do not."""
    records = [record for path in parent.glob(f"*/{_RECORD}") if (record := _read(path)) is not None]
    yield from sorted(records, key=lambda record: record.created)


def _read(path: Path) -> JobRecord | None:
    """The record in ``path`` if its job runs; removes its directory if the job does not run any more.

    What cannot be read stays: records are written whole, so it is one of another version, whose job may run.
    """
    try:
        record = JobRecord.from_json(json.loads(path.read_text("utf-8")))
        if record.alive:
            return record
    except FileNotFoundError:
        return None  # its job has ended just now
    except (OSError, ValueError) as error:
        _LOG.warning("ignoring %s, which another version may have written: %s", path, error)
        return None
    shutil.rmtree(path.parent, ignore_errors=True)
    return None
