"""A turn: a job that grows by a rank, then loses one by SIGKILL, and how long the others and the new ranks took.

    python -m tfcollective_bench.elastic.trial DIRECTORY RANKS SECONDS CALM FEWER ALL COMMAND...

COMMAND starts :mod:`.rank`. The ranks leave their journals in a directory of this turn, below DIRECTORY, for which
@TURN@ stands in COMMAND. A job that can grow finds its hosts in the file ``hosts`` there: first FEWER, with one slot
less than RANKS, and once all have trained for CALM seconds ALL, words like ``localhost:2,127.0.0.1:1``. Both are empty
where a job cannot: it begins with so many ranks. When all RANKS have trained for as long, one of them is killed: rank 0
in the first turn, rank 1 in the next one, and so on.

Prints one line of JSON, see :func:`times_of_growing` and :func:`times_after`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import LaunchError
from tfcollective_bench.elastic.rank import STOP_FILE
from tfcollective_bench.journal import READY, STEP, JournalReader, Line

__all__ = ["HOSTS_FILE", "TURN", "Observed", "main", "times_after", "times_of_growing"]

#: Stands for the directory of a turn.
TURN = "@TURN@"
#: In it: the hosts of a job that can grow.
HOSTS_FILE = "hosts"
_LOOK_S = 0.005
_STEPS = 20  # of each rank, before anything is done to it
_END_S = 60.0


class Observed:
    """The journals of a job, as far as they are known."""

    def __init__(self, directory: Path) -> None:
        self._reader = JournalReader(directory)
        self.lines: list[Line] = []

    def read(self) -> None:
        """Takes what is new."""
        self.lines.extend(self._reader.read())

    def whole(self, ranks: int) -> bool:
        """True if so many ranks have done enough steps."""
        steps = [line.pid for line in self.lines if line.event == STEP and line.size == ranks]
        return sum(steps.count(pid) >= _STEPS for pid in set(steps)) >= ranks

    def pid_of(self, rank: int) -> int:
        """The process that had this rank last."""
        return next(line.pid for line in reversed(self.lines) if line.event == STEP and line.rank == rank)


def times_of_growing(lines: Sequence[Line], at: float, ranks: int) -> Mapping[str, float] | None:
    """Seconds from new hosts until all have completed a step of the larger world (``grow``), and how long no step was
    completed meanwhile (``pause``); None while there is no such step.

    Args:
        lines: of all processes, each in its order.
        at: when the hosts changed (s, monotonic clock).
        ranks: how many the larger world has.
    """
    first: dict[int, float] = {}
    for line in lines:
        if line.event == STEP and line.size == ranks and line.at > at:
            first.setdefault(line.pid, line.at)
    if len(first) < ranks:
        return None
    begins = min(first.values())
    before = [line.at for line in lines if line.event == STEP and line.size < ranks and line.at < begins]
    return {"grow": max(first.values()) - at, "pause": begins - max(before, default=at)}


def times_after(lines: Sequence[Line], at: float, victim: int, ranks: int) -> Mapping[str, float] | None:
    """Seconds from the SIGKILL until all survivors have completed a step of a later world (``survivors``), and until a
    new process has, in a world of as many ranks as before (``replacement``); and how long no step was completed when it
    joined (``join``). When nothing survives, because all processes are started again, the first two are the new
    processes' first step, and the third is not there. None until it is known.

    Args:
        lines: of all processes, each in its order.
        at: when the process `victim` was killed (s, monotonic clock).
        ranks: how many the whole world has.
    """
    known = {line.pid for line in lines if line.at <= at}
    again: dict[int, float] = {}  # process -> when it was ready once more
    first: dict[int, float] = {}  # process -> its first step in a later world
    whole: dict[int, float] = {}  # the same in a whole one
    for line in lines:
        if line.at <= at:
            continue
        if line.event == READY:
            again.setdefault(line.pid, line.at)
        elif line.event == STEP and line.pid in again:
            first.setdefault(line.pid, line.at)
            if line.size >= ranks:
                whole.setdefault(line.pid, line.at)
    new = [whole[pid] for pid in whole.keys() - known]
    survivors = [first[pid] for pid in first.keys() & known - {victim}]
    if not new or (survivors and len(survivors) < ranks - 1):
        return None
    if not survivors and len(new) < ranks:
        return None
    if not survivors:
        return {"survivors": max(new) - at, "replacement": max(new) - at}
    smaller = [line.at for line in lines if line.event == STEP and line.size < ranks and at < line.at < min(new)]
    return {"survivors": max(survivors) - at, "replacement": min(new) - at, "join": min(new) - max(smaller, default=at)}


def _write_hosts(directory: Path, hosts: str) -> None:
    """A job that reads the file meanwhile finds the old ones or these."""
    new = directory / "hosts.new"
    new.write_text("".join(f"{host}\n" for host in hosts.split(",")), "utf-8")
    new.replace(directory / HOSTS_FILE)


def _measure(
    directory: Path,
    ranks: int,
    victim: int,
    times: tuple[float, float],
    hosts: tuple[str, str],
    command: Sequence[str],
) -> Mapping[str, float]:
    observed, deadline = Observed(directory), Deadline.after(times[0])
    fewer, all_hosts = hosts
    if fewer:
        _write_hosts(directory, fewer)
    output = tempfile.TemporaryFile()  # noqa: SIM115  closed below; a pipe would fill
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def until(found: Callable[[], object], what: str) -> None:
        while not found():
            if deadline.expired() or job.poll() is not None:
                output.seek(0)
                sys.stderr.write(output.read().decode("utf-8", "replace"))
                ended = "had not come in time" if job.poll() is None else f"ended with code {job.returncode} before"
                raise LaunchError(f"the job {ended}: {what}")
            time.sleep(_LOOK_S)  # what ranks write gives no notice
            observed.read()

    def trains_with(size: int) -> None:
        until(lambda: observed.whole(size), f"{size} ranks have done some steps")
        calm = Deadline.after(times[1])
        until(calm.expired, "they go on")

    found: dict[str, float] = {}
    try:
        if fewer:
            trains_with(ranks - 1)
            at = time.monotonic()
            _write_hosts(directory, all_hosts)
            until(lambda: times_of_growing(observed.lines, at, ranks), "all have done a step of the larger world")
            found.update(times_of_growing(observed.lines, at, ranks) or {})
        trains_with(ranks)
        pid, at = observed.pid_of(victim), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda: times_after(observed.lines, at, pid, ranks), "a new rank has done a step with the others")
        found.update(times_after(observed.lines, at, pid, ranks) or {})
        (directory / STOP_FILE).touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_END_S)
        return found
    finally:
        if job.poll() is None:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(_END_S)
        if job.poll() is None:
            job.kill()
        job.wait()
        output.close()


def main(arguments: Sequence[str]) -> None:
    """Measures; see the module."""
    below, ranks, seconds, calm, fewer, all_hosts, *words = arguments
    Path(below).mkdir(parents=True, exist_ok=True)
    number = len(list(Path(below).iterdir()))
    directory = Path(below) / f"turn-{number}"
    directory.mkdir()
    command = [word.replace(TURN, str(directory)) for word in words]
    victim = number % int(ranks)
    try:
        found = _measure(directory, int(ranks), victim, (float(seconds), float(calm)), (fewer, all_hosts), command)
        print(json.dumps({**found, "victim": victim}))
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
