"""The journal of the ranks of a job under test: a line for each event, which outlives the process.

The times are those of the monotonic clock, which all processes of a host share: so what one process did to another can
be timed without either of them waiting for the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["DIES", "ENDS", "READY", "STARTS", "STEP", "Journal", "JournalReader", "Line", "parse_line"]

#: Events: the program begins; it has joined a world for the first time; a step is done; it ends itself; it is complete.
STARTS, READY, STEP, DIES, ENDS = "starts", "ready", "step", "dies", "ends"
_SUFFIX = ".journal"


class Line(NamedTuple):
    """An event.

    Attributes:
        task: whose, for example ``worker:3``.
        pid: of its process.
        event: one of the constants of this module.
        at: when (s, monotonic clock).
        generation: of the world; 0: outside one.
        rank: in it.
        size: of it.
        step: how many steps are done.
    """

    task: str
    pid: int
    event: str
    at: float
    generation: int = 0
    rank: int = 0
    size: int = 0
    step: int = 0


class Journal:
    """Written by one process.

    Args:
        directory: where the journals of all ranks are.
        task: whose it is.
    """

    def __init__(self, directory: Path, task: str) -> None:
        name = f"{task.replace(':', '-')}.{os.getpid()}{_SUFFIX}"
        self._file = os.open(directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, event: str, generation: int = 0, rank: int = 0, size: int = 0, step: int = 0) -> None:
        """Adds a line. It is whole or not there, whatever ends the process."""
        text = f"{event} {time.monotonic():.6f} {generation} {rank} {size} {step}\n"
        os.write(self._file, text.encode("ascii"))


def parse_line(task: str, pid: int, text: str) -> Line:
    """The event of a line, without its end."""
    event, at, *numbers = text.split(" ")
    return Line(task, pid, event, float(at), *map(int, numbers))


class JournalReader:
    """Reads what is new in the journals of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[str, int] = {}
        self._ended: set[str] = set()

    def forget(self, task: str) -> None:
        """The task's process has ended, and all that it wrote was read."""
        self._ended.add(task)

    def read(self) -> Iterator[Line]:
        """The lines that came since the last call, process by process."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            name, _, pid = path.name[: -len(_SUFFIX)].rpartition(".")
            task = name.replace("-", ":")
            if task in self._ended:
                continue
            begin = self._positions.get(path.name, 0)
            if path.stat().st_size == begin:
                continue
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._positions[path.name] = begin + len(whole)
            for text in whole.decode("ascii").splitlines():
                yield parse_line(task, int(pid), text)
