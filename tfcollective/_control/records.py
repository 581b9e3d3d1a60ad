"""Records of this user's running jobs: how ``tfcollective status`` finds their coordinators.

One private directory a job, in one private directory a user. A record holds the job key, so no other user may read it.

Each directory has an owner, the process that made it, which holds a lock on a file in it until it ends. The kernel
releases the lock however the process ends, and shows it to every PID namespace of the host: a directory whose lock is
free is of no use and is removed. A directory that another host made (the parent may be shared) is never judged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._base.private_directory import unusable, write_private
from tfcollective._base.topology import Endpoint

_LOG = get_logger(__name__)
_RECORD = "record.json"
_OWNER = "owner"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class JobRecord:
    """A running job.

    Attributes:
        job_id: its name.
        coordinator: where its coordinator listens.
        key: the job key.
        pid: the process with which the job ends, as its own PID namespace numbers it; for people.
        created: when that process started, in seconds since 1970; for people.
        command: what the job runs, for people.
        log_dir: where the output of the ranks of this machine is kept; empty: nowhere.
    """

    job_id: str
    coordinator: Endpoint
    key: bytes = field(repr=False)
    pid: int
    created: float
    command: tuple[str, ...]
    log_dir: str = ""


class _Owner(Enum):
    RUNS = "runs"
    GONE = "gone"
    UNKNOWN = "unknown"  # it is on another host, or has not taken its lock yet


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


class JobDirectory:
    """The private directory of one job; removed by :meth:`close`. A context manager.

    It belongs to the process that makes it: once that has ended, the next job of this user on this host removes it.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock  # a descriptor that only this process has; -1 once it is closed

    @classmethod
    def create(cls, parent: Path, job_id: str) -> JobDirectory:
        """Makes the directory; removes what ended jobs of this host have left. ConfigError when it cannot be made."""
        for owner in parent.glob(f"*/{_OWNER}"):
            _judge(owner.parent)
        path = parent / job_id
        with _explained(path):
            path.mkdir(mode=0o700)
            try:
                return cls(path, _take_lock(path))
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def publish(self, record: JobRecord) -> None:
        """Writes the record, whole or not at all, with mode 0600."""
        with _explained(self.path):
            write_private(self.path / _RECORD, encode(record))

    def close(self) -> None:
        """Removes the directory. A second call does nothing."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def running_jobs(parent: Path) -> Iterator[JobRecord]:
    """The jobs that run on this host, oldest first. Removes the directories of those that have ended."""
    records = [record for path in parent.glob(f"*/{_RECORD}") if (record := _read(path)) is not None]
    yield from sorted(records, key=lambda record: record.created)


@contextlib.contextmanager
def open_owner(parent: Path, record: JobRecord) -> Iterator[int | None]:
    """A descriptor of the process with which the job ends, for signals and for its end; None if the job has ended.

    A record's number may be another process's: of another PID namespace, or of a later process. So the process must
    have this job's lock open. ConfigError if it has not.
    """
    directory = next((path.parent for path in parent.glob(f"*/{_RECORD}") if _read(path) == record), None)
    try:
        process = None if directory is None else os.pidfd_open(record.pid)
    except ProcessLookupError:
        process = None
    try:
        if directory is not None and (process is None or not _has_open(record.pid, directory / _OWNER)):
            if _judge(directory) is _Owner.RUNS:
                raise ConfigError(
                    f"{record.job_id}: its launcher is process {record.pid} of another PID namespace (a container?): "
                    "end the job there"
                )
            yield None
        else:
            yield process
    finally:
        if process is not None:
            os.close(process)


def _has_open(pid: int, path: Path) -> bool:
    """True if the process has this file open, and this user may see that."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(wanted, descriptor.stat()):
                    return True
    return False


def _read(path: Path) -> JobRecord | None:
    """The record in ``path`` if its job runs here; removes its directory if the job has ended.

    What cannot be read stays: records are written whole, so it is one of another version, whose job may run.
    """
    if _judge(path.parent) is not _Owner.RUNS:
        return None
    try:
        return decode(path.read_bytes(), JobRecord, "the record of a job")
    except FileNotFoundError:
        return None  # its job has ended just now
    except (OSError, ConfigError) as error:
        _LOG.warning("ignoring %s, which another version may have written: %s", path, error)
        return None


def _take_lock(directory: Path) -> int:
    """Makes the owner's file and locks it; returns the descriptor that holds the lock.

    The file is locked before it has its name, so no other process ever finds it free while the owner runs.
    """
    partial = directory / f"{_OWNER}.new"
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, _BOOT_ID.read_bytes())
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.replace(directory / _OWNER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _judge(directory: Path) -> _Owner:
    """Finds out whether the owner of a directory still runs; removes the directory if it has ended."""
    try:
        with (directory / _OWNER).open("r+b") as file:  # NFS locks no file that cannot be written
            # The boot's id is the kernel's: all its PID namespaces share it, no other host has it.
            if file.read() != _BOOT_ID.read_bytes():
                return _Owner.UNKNOWN
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # While the lock is held no other process removes the directory, and none can make one in its place. One may
            # have before: the file that was opened is another then.
            if not os.path.samestat(os.fstat(file.fileno()), (directory / _OWNER).stat()):
                return _Owner.UNKNOWN
            _LOG.info("%s is removed: the job that it belonged to has ended", directory)
            shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return _Owner.RUNS
    except OSError:
        return _Owner.UNKNOWN
    return _Owner.GONE
