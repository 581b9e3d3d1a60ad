"""One turn: a job that loses a rank by SIGKILL, or gets one more host, and how long its ranks took.

    python -m tfcollective_bench.elastic.trial DIRECTORY RANKS SECONDS kill|grow COMMAND...

COMMAND starts :mod:`.rank`. The ranks leave their journals in a directory of this turn, below DIRECTORY, for which
@TURN@ stands. Prints one line of JSON, in seconds.

``kill``: once so many ranks have done some steps, one of them is killed: rank 0 in the first turn, rank 1 in the next
one, and so on. From the SIGKILL until all survivors have completed a step of a later world, and until a new process
has, in a world of as many ranks as before; and how long no step was completed when it joined. When nothing survives
(all processes are started again), the first two are the new processes' first step, and the third is not there.

``grow``: once all ranks but one have done some steps, the job's discovery script prints one more host. From that moment
until a new process has completed a step in a world of so many ranks; and how long no step was completed when it joined.
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
from functools import partial
from pathlib import Path

from tfcollective.clock import Deadline
from tfcollective.errors import LaunchError
from tfcollective_bench.elastic.rank import STOP_FILE
from tfcollective_bench.journal import READY, STEP, JournalReader, Line

__all__ = ["GROW", "HOSTS_SCRIPT", "KILL", "TURN", "Observed", "arrival_after", "main", "times_after"]

#: Stands for the directory of a turn.
TURN = "@TURN@"
KILL, GROW = "kill", "grow"
#: The discovery script of a job that grows, in the directory of its turn.
HOSTS_SCRIPT = "discover.sh"
_FIRST_HOST, _ADDED_HOST = "localhost", "127.0.0.1"  # two names of one host are two hosts
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


def arrival_after(lines: Sequence[Line], at: float, ranks: int) -> Mapping[str, float] | None:
    """What :mod:`.trial` prints of a job that grows, once it is known; else None.

    Args:
        lines: of all processes, each in its order.
        at: when there was one more host (s, monotonic clock).
        ranks: how many the larger world has.
    """
    known = {line.pid for line in lines if line.at <= at}
    steps = [line for line in lines if line.event == STEP]
    new = min((line.at for line in steps if line.pid not in known and line.size >= ranks), default=None)
    if new is None:
        return None
    smaller = [line.at for line in steps if line.pid in known and line.size < ranks and line.at < new]
    return {"arrival": new - at, "join": new - max(smaller, default=at)}


def _print_hosts(directory: Path, *hosts: str) -> float:
    """Has the discovery script print these hosts; returns from when on."""
    written, script = directory / "discover.partial", directory / HOSTS_SCRIPT
    written.write_text("".join(["#!/bin/sh\n", *(f"echo {host}\n" for host in hosts)]), "utf-8")
    written.chmod(0o700)
    at = time.monotonic()
    written.replace(script)
    return at


def _measure(
    directory: Path, ranks: int, event: str, victim: int, seconds: float, command: Sequence[str]
) -> Mapping[str, float]:
    first_host = f"{_FIRST_HOST}:{ranks - 1}"
    if event == GROW:
        _print_hosts(directory, first_host)
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
        until(lambda: observed.whole(ranks - (event == GROW)), "all ranks have done some steps")
        calm = Deadline.after(_CALM_S)
        until(calm.expired, "they go on")
        if event == GROW:
            at = _print_hosts(directory, first_host, f"{_ADDED_HOST}:1")
            known = partial(arrival_after, observed.lines, at, ranks)
        else:
            at, victims = _kill(observed, victim)
            known = partial(times_after, observed.lines, at, victims, ranks)
        until(known, "a new rank has done a step with the others")
        found = known() or {}
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
    below, ranks, seconds, event, *words = arguments
    Path(below).mkdir(parents=True, exist_ok=True)
    number = len(list(Path(below).iterdir()))
    directory = Path(below) / f"turn-{number}"
    directory.mkdir()
    command = [word.replace(TURN, str(directory)) for word in words]
    victim = number % int(ranks)
    about = {"victim": victim} if event == KILL else {}
    try:
        print(json.dumps({**_measure(directory, int(ranks), event, victim, float(seconds), command), **about}))
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
