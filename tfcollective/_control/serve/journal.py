"""What has changed a job, in a file: a coordinator that is started again goes on from there.

One line of JSON a change, readable by its owner alone. It outlives the process, not the host: nothing waits for a disk.
It holds what the job's processes have stored, and never the job key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.codec import decode, encode_line, from_document, to_document
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._control.serve.job import CHANGES, Change

_LOG = get_logger(__name__)


@dataclass(frozen=True)
class _Line:
    kind: str
    at: float
    stopped: float
    what: object


def to_line(change: Change) -> bytes:
    """A change as it is written down."""
    return encode_line(_Line(type(change.what).__name__, change.at, change.stopped, to_document(change.what)))


def from_line(line: bytes) -> Change:
    """What :func:`to_line` was given; ConfigError when the line is something else."""
    read = decode(line, _Line, "a line of the journal")
    kind = CHANGES.get(read.kind)
    if kind is None:
        raise ConfigError(f"a line of the journal cannot be read: {read.kind!r} is no change that this version knows")
    return Change(from_document(read.what, kind, f"a {read.kind} in the journal"), read.at, read.stopped)


class Journal:
    """A file that is written at its end. Not thread-safe."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor  # -1: it cannot be written any longer

    @classmethod
    def create(cls, path: Path) -> Journal:
        """An empty one. Raises CoordinatorError when it cannot be made."""
        return cls(path, _open(path, os.O_CREAT | os.O_EXCL))

    @classmethod
    def reopen(cls, path: Path) -> Journal:
        """One that another process has begun. A last line that was not written whole is removed: none knows of
        what it says. Raises CoordinatorError when there is none."""
        descriptor = _open(path, 0)
        whole = 0
        with path.open("rb") as file:
            for line in file:
                whole += len(line) if line.endswith(b"\n") else 0
        os.ftruncate(descriptor, whole)
        return cls(path, descriptor)

    def read(self) -> Iterator[Change]:
        """What stands in it; raises ConfigError."""
        with self._path.open("rb") as file:
            for line in file:
                yield from_line(line)

    def write(self, change: Change) -> None:
        """Writes a change. Where that is impossible, the job goes on without a journal, and not without this process:
        what is incomplete is removed."""
        if self._descriptor < 0:
            return
        left = memoryview(to_line(change))
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            _LOG.warning(
                "the journal %s cannot be written: the job ends if its coordinator does: %s", self._path, error
            )
            self.remove()

    def close(self) -> None:
        """Writes no more; the file stays. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Removes the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise CoordinatorError(f"the coordinator's journal cannot be opened: {error}") from error
