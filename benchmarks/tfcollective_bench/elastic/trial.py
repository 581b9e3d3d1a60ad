"""One turn: a job that loses a rank by SIGKILL, and how long the others and its replacement took.

    python -m tfcollective_bench.elastic.trial DIRECTORY RANKS SECONDS COMMAND...

COMMAND starts :mod:`.rank` on so many ranks. They leave their journals in a directory of this turn, below DIRECTORY,
for which the word @TURN@ stands. Once all have done some steps, one of them is killed: rank 0 in the first turn, rank 1
in the next one, and so on. Prints one line of JSON: seconds from the SIGKILL until all survivors have
completed a step of a later world, and until a new process has, in a world of as many ranks as before; and how long no
step was completed when it joined. When nothing survives (all processes are started again), the first two are the new
processes' first step, and the third is not there.
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

from tfcollective.clock import Deadline
from tfcollective.errors import LaunchError
from tfcollective_bench.elastic.rank import STOP_FILE
from tfcollective_bench.journal import READY, STEP, JournalReader, Line

__all__ = ["EVENTS", "TURN", "Observed", "main", "times_after"]

#: Stands for the directory of a turn.
TURN = "@TURN@"
_LOOK_S = 0.005
_STEPS = 20  # of each rank, before anything is done to it
_CALM_S = 1.0
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
        """Whether so many ranks have done enough steps."""
        steps = [line.pid for line in self.lines if line.event == STEP and line.size == ranks]
        return sum(steps.count(pid) >= _STEPS for pid in set(steps)) >= ranks

    def pid_of(self, rank: int) -> int:
        """The process that had this rank last."""
        return next(line.pid for line in reversed(self.lines) if line.event == STEP and line.rank == rank)


def times_after(lines: Sequence[Line], at: float, victims: Sequence[int], ranks: int) -> Mapping[str, float] | None:
    """What :mod:`.trial` prints, once it is known; else None.

    Args:
        lines: of all processes, each in its order.
        at: when the processes in `victims` were killed (s, monotonic clock).
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
    survivors = [first[pid] for pid in first.keys() & known - set(victims)]
    if not new or (survivors and len(survivors) < ranks - len(victims)):
        return None
    if not survivors and len(new) < ranks:
        return None
    if not survivors:
        return {"survivors": max(new) - at, "replacement": max(new) - at}
    smaller = [line.at for line in lines if line.event == STEP and line.size < ranks and at < line.at < min(new)]
    return {"survivors": max(survivors) - at, "replacement": min(new) - at, "join": min(new) - max(smaller, default=at)}


def _kill(observed: Observed, victim: int) -> tuple[float, list[int]]:
    """Kills a rank; returns when, and which processes."""
    pid = observed.pid_of(victim)
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at, [pid]


#: What may be done to a job. A change of its hosts will be one more, when a running job can grow.
EVENTS: Mapping[str, Callable[[Observed, int], tuple[float, list[int]]]] = {"kill": _kill}


def _measure(directory: Path, ranks: int, victim: int, seconds: float, command: Sequence[str]) -> Mapping[str, float]:
    observed, deadline = Observed(directory), Deadline.after(seconds)
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

    try:
        until(lambda: observed.whole(ranks), "all ranks have done some steps")
        calm = Deadline.after(_CALM_S)
        until(calm.expired, "they go on")
        at, victims = EVENTS["kill"](observed, victim)
        until(lambda: times_after(observed.lines, at, victims, ranks), "a new rank has done a step with the others")
        found = times_after(observed.lines, at, victims, ranks) or {}
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
    below, ranks, seconds, *words = arguments
    Path(below).mkdir(parents=True, exist_ok=True)
    number = len(list(Path(below).iterdir()))
    directory = Path(below) / f"turn-{number}"
    directory.mkdir()
    command = [str(directory) if word == TURN else word for word in words]
    victim = number % int(ranks)
    try:
        print(json.dumps({**_measure(directory, int(ranks), victim, float(seconds), command), "victim": victim}))
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
