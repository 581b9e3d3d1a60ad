"""Carries faults out."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import psutil

from tfcollective._base.machine.cores import available_cores
from tfcollective_bench.chaos.faults import Fault, FaultKind
from tfcollective_bench.chaos.job import WatchedJob
from tfcollective_bench.chaos.progress import Strike
from tfcollective_bench.chaos.rank import ALLREDUCE, COMMIT, CONNECT, EXIT, SLOW, SYNC, Order
from tfcollective_bench.journal import DIES, Line

__all__ = ["Striker"]

_DIES_S = 20.0  # until a rank has carried out its order
_NEWCOMER_S = 20.0
_LEAST_HOLD_S, _MOST_HOLD_S = 2.0, 6.0
_USUAL_START_S = 1.0
_PAST_START = 1.5  # some newcomers die when they have joined


class Striker:
    """Carries out the faults of a schedule on a job."""

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        ways: Mapping[FaultKind, Callable[[Fault, list[Line]], tuple[float, list[Line]]]] = {
            FaultKind.KILL: lambda fault, ranks: self._kill([_one(ranks[1:], fault.victim)]),
            FaultKind.KILL_FIRST: lambda fault, ranks: self._kill(ranks[:1]),
            FaultKind.KILL_TWO: self._kill_two,
            FaultKind.KILL_ALLREDUCE: lambda fault, ranks: self._order(fault, ranks, ALLREDUCE),
            FaultKind.KILL_COMMIT: lambda fault, ranks: self._order(fault, ranks, COMMIT),
            FaultKind.KILL_SYNC: lambda fault, ranks: self._order_and_kill(fault, ranks, SYNC),
            FaultKind.KILL_CONNECT: lambda fault, ranks: self._order_and_kill(fault, ranks, CONNECT),
            FaultKind.KILL_NEWCOMER: self._kill_newcomer,
            FaultKind.EXIT: lambda fault, ranks: self._order(fault, ranks, EXIT),
            FaultKind.STOP: self._stop,
            FaultKind.LEAVE: self._leave,
            FaultKind.HOG: self._hog,
            FaultKind.SLOW: self._slow,
        }
        self._ways = ways

    def strike(self, fault: Fault, seconds: float) -> Strike:
        """Does it, once there are enough ranks, for which it waits so long. Raises WentWrong as the job does."""
        job, kind = self._job, fault.kind
        enough = job.until(lambda: len(job.members()) >= kind.ranks, seconds)
        ranks = job.members()
        size, generation = len(ranks), ranks[0].generation if ranks else 0
        if not enough:
            why = f"only {size} ranks for {seconds:.0f} s"
            return Strike(fault.number, kind.value, fault.at, time.monotonic(), size, generation, skipped=why)
        at, victims = self._ways[kind](fault, ranks)
        names, ends = tuple(line.task for line in victims), kind.ends_a_rank
        skipped = "" if victims or kind is FaultKind.HOG else "it did not strike"
        return Strike(fault.number, kind.value, fault.at, at, size, generation, names, ends, skipped)

    def _kill(self, victims: list[Line]) -> tuple[float, list[Line]]:
        times = [self._job.signal(line.task, signal.SIGKILL) for line in victims]
        self._job.until(lambda: not any(self._job.lives(line.task) for line in victims), _DIES_S)
        return times[0], victims

    def _kill_two(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        first = _one(ranks, fault.victim)
        return self._kill([first, _one([line for line in ranks if line is not first], fault.moment)])

    def _order(self, fault: Fault, ranks: list[Line], what: str) -> tuple[float, list[Line]]:
        victim = _one(ranks, fault.victim)
        if not self._job.order(victim.task, Order(what, fault.moment)):
            return time.monotonic(), []
        return self._death(victim)

    def _order_and_kill(self, fault: Fault, ranks: list[Line], what: str) -> tuple[float, list[Line]]:
        """Kills one rank during the recovery from the loss of another."""
        doomed = _one(ranks, fault.victim)
        killed = _one([line for line in ranks if line is not doomed], fault.moment)
        if not self._job.order(doomed.task, Order(what, fault.moment)):
            return time.monotonic(), []
        self._job.pause(0.05)  # until it has read that
        at, _ = self._kill([killed])
        return at, [killed, *self._death(doomed)[1]]

    def _death(self, victim: Line) -> tuple[float, list[Line]]:
        """Waits for the end of a rank that was ordered to end itself."""
        job = self._job
        job.until(lambda: not job.lives(victim.task), _DIES_S)
        job.look()
        at = job.progress.events.get((victim.task, DIES))
        return (time.monotonic(), []) if at is None else (at, [victim])

    def _kill_newcomer(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        """Kills a rank, and what takes its place while it starts or joins."""
        job, known = self._job, {process.pid for process in self._job.started()}
        at, victims = self._kill([_one(ranks, fault.victim)])
        newcomers: list[psutil.Process] = []

        def appeared() -> bool:
            newcomers[:] = [process for process in job.started() if process.pid not in known]
            return bool(newcomers)

        if not job.until(appeared, _NEWCOMER_S):
            return at, victims  # its host is blocked for now
        job.pause(fault.moment * _PAST_START * self._usual_start())
        with contextlib.suppress(psutil.Error):
            newcomers[0].kill()
        return at, [*victims, Line("newcomer", newcomers[0].pid, DIES, time.monotonic())]

    def _usual_start(self) -> float:
        """Returns the usual time (s) that ranks took from the start of their program to their first world."""
        return median(self._job.progress.starts() or [_USUAL_START_S])

    def _stop(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        victim = _one(ranks, fault.victim)
        at = self._job.signal(victim.task, signal.SIGSTOP)
        try:
            self._job.pause(_hold(fault))
        finally:
            self._job.signal(victim.task, signal.SIGCONT)
        return at, [victim]

    def _leave(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        victim = _one(ranks, fault.victim)
        at = self._job.signal(victim.task, signal.SIGTERM)
        gone = self._job.until(lambda: not self._job.lives(victim.task), _DIES_S)
        return at, [victim] if gone else []

    def _hog(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        del ranks
        at = time.monotonic()
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cores())]
        try:
            self._job.pause(_hold(fault))
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        return at, []

    def _slow(self, fault: Fault, ranks: list[Line]) -> tuple[float, list[Line]]:
        victim = _one(ranks, fault.victim)
        at = time.monotonic()
        if not self._job.order(victim.task, Order(SLOW, _hold(fault))):
            return at, []
        self._job.pause(_hold(fault))
        return at, [victim]


def _one(ranks: list[Line], place: float) -> Line:
    return ranks[min(int(place * len(ranks)), len(ranks) - 1)]


def _hold(fault: Fault) -> float:
    """Returns how long (s) a rank is held up."""
    return _LEAST_HOLD_S + fault.moment * (_MOST_HOLD_S - _LEAST_HOLD_S)
