"""Runs variants of a benchmark in turns: every variant once a round, in a process of its own.

A variant is any command that prints one JSON object a line on stdout; other lines are kept only to explain a failure.
The order rotates from round to round, so that no variant always runs first on a cold machine or after the same other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

import psutil

from tfcollective._base.clock import SYSTEM_CLOCK, Clock, Deadline
from tfcollective._base.exit_codes import signal_name
from tfcollective._base.processes import signal_group, spawn
from tfcollective._base.settings import environ_snapshot
from tfcollective_bench.interrupts import interrupts_deferred

__all__ = ["Event", "Failure", "Record", "Started", "Variant", "Watch", "interleave", "last_word", "rotation"]

# TensorFlow's logs, also behind the rank that some launchers put in front of every line.
_RANK = r"^(?:\[\d+\]<std(?:out|err)>: ?)?"
_INFORMATION = re.compile(_RANK + r"(?:I\d{4} |\d{4}-\d\d-\d\d \S+ I |WARNING: All log messages )")
# What our launcher's report says after the cause.
_AFTERWARDS = re.compile(r"  then |tfcollective: note: ")

_TAIL_LINES = 30
_READ_BYTES = 1 << 16
_TERM_GRACE_S = 1.0
_KILL_WAIT_S = 5.0
_ORPHANS_S = 0.5
# Some launchers put the rank in front of every line.
_JSON_LINE = re.compile(r"^(?:\[\d+\]<stdout>: ?)?(\{.*\})\s*$")


@dataclass(frozen=True)
class Variant:
    """A command that takes part.

    Attributes:
        name: how events call it; unique.
        argv: program and arguments.
        deadline_s: after so many seconds it is killed with all that it started.
        env: added to this process's environment.
        unset: taken out of it.
        cwd: where it runs; None: here.
    """

    name: str
    argv: tuple[str, ...]
    deadline_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(frozen=True)
class Started:
    """A variant begins its turn."""

    variant: str
    round: int


@dataclass(frozen=True)
class Record:
    """A variant has printed a JSON object."""

    variant: str
    round: int
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """A variant has crashed, hung or could not be started; it takes no further turn. `last_line` is from its output."""

    variant: str
    round: int
    reason: str
    last_line: str

    def __str__(self) -> str:
        said = f": {self.last_line}" if self.last_line else ""
        return f"{self.reason} in round {self.round + 1}{said}"


Event: TypeAlias = Started | Record | Failure
#: Given the number of turns, opens something that takes every event.
Watch: TypeAlias = Callable[[int], contextlib.AbstractContextManager[Callable[[Event], None]]]


def rotation(count: int, number: int) -> list[int]:
    """The order of `count` variants in round `number`: each round begins one later; odd rounds run backwards, so
    that a variant does not always follow the same other."""
    order = [(number // 2 + index) % count for index in range(count)]
    return order[::-1] if number % 2 else order


def interleave(
    variants: Sequence[Variant], rounds: int, *, until: Deadline | None = None, clock: Clock = SYSTEM_CLOCK
) -> Generator[Event, None, None]:
    """Runs every variant once a round; yields what happens, as it happens.

    No turn begins after `until`; a variant that had none by then ends with a :class:`Failure` that says so. A variant
    that fails ends with a :class:`Failure` and the others go on. However the iteration ends (also by Ctrl-C
    or by closing the iterator), no process is left. Call it from the main thread.
    """
    failed: set[str] = set()
    begun: set[str] = set()
    for number in range(rounds):
        for index in rotation(len(variants), number):
            variant = variants[index]
            if variant.name in failed:
                continue
            if until is not None and until.expired(clock):
                if variant.name not in begun:
                    failed.add(variant.name)
                    yield Failure(variant.name, number, "had no turn before the time was up", "")
                continue
            begun.add(variant.name)
            yield Started(variant.name, number)
            with contextlib.closing(_turn(variant, number, clock)) as turn:  # closed with this generator
                for event in turn:
                    if isinstance(event, Failure):
                        failed.add(variant.name)
                    yield event


def _turn(variant: Variant, number: int, clock: Clock) -> Generator[Event, None, None]:
    """Runs one variant once."""
    inherited = {name: value for name, value in environ_snapshot().items() if name not in variant.unset}
    try:
        process = spawn(variant.argv, {**inherited, **variant.env}, variant.cwd)
    except OSError as error:
        yield Failure(variant.name, number, f"cannot start {variant.argv[0]}", str(error))
        return
    output = _Output()
    deadline = Deadline.after(variant.deadline_s, clock)
    try:
        for content in output.read(process, deadline, clock):
            yield Record(variant.name, number, content)
        late = not _ends(process, deadline.remaining(clock))
    finally:
        with interrupts_deferred():
            _end_all(process)
    reason = _reason(process.returncode, variant.deadline_s if late else None)
    if reason is not None:
        yield Failure(variant.name, number, reason, output.last_line())


def _reason(status: int, late_after: float | None) -> str | None:
    if late_after is not None:
        return f"killed after {late_after:g} s"
    if status == 0:
        return None
    return f"ended with code {status}" if status > 0 else f"ended by {signal_name(-status)}"


class _Output:
    """Both streams of a process, line by line."""

    def __init__(self) -> None:
        self._rest = {"stdout": b"", "stderr": b""}
        self._tails: dict[str, deque[str]] = {name: deque(maxlen=_TAIL_LINES) for name in self._rest}

    def read(self, process: subprocess.Popen[bytes], deadline: Deadline, clock: Clock) -> Iterator[Mapping[str, Any]]:
        """Yields the JSON objects on stdout until both streams end, time is up, or the process has ended and what it
        has left behind keeps silent."""
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector, _exit_of(process) as exited:
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            selector.register(exited, selectors.EVENT_READ)
            over = False
            while len(selector.get_map()) > (0 if over else 1) and not deadline.expired(clock):
                ready = selector.select(_ORPHANS_S if over else deadline.remaining(clock))
                if over and not ready:
                    return
                for key, _ in ready:
                    if key.fileobj is exited:
                        over = True
                        selector.unregister(exited)
                        continue
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    yield from self._take(key.data, data or b"\n")

    def _take(self, stream: str, data: bytes) -> Iterator[Mapping[str, Any]]:
        *lines, self._rest[stream] = (self._rest[stream] + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            content = _parse(text) if stream == "stdout" else None
            if content is not None:
                yield content
            elif text:
                self._tails[stream].append(text)

    def last_line(self) -> str:
        """The last line that tells anything, of stderr if it has said anything."""
        errors, output = (list(self._tails[stream]) for stream in ("stderr", "stdout"))
        return last_word([*output, *errors])


@contextlib.contextmanager
def _exit_of(process: subprocess.Popen[bytes]) -> Iterator[IO[bytes]]:
    """Yields a file that becomes readable when the process ends."""
    with os.fdopen(os.pidfd_open(process.pid), "rb", buffering=0) as ended:
        yield ended


def _parse(line: str) -> Mapping[str, Any] | None:
    found = _JSON_LINE.match(line)
    if found is None:
        return None
    try:
        content = json.loads(found[1])
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it has started: SIGTERM, a moment, SIGKILL. Nothing if all have ended."""
    family = _family(process.pid)
    for number, wait in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_WAIT_S)):
        if not family and process.poll() is not None:
            break
        if process.poll() is None:
            signal_group(process.pid, number)
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.send_signal(number)
        psutil.wait_procs(family, wait)
        _ends(process, wait)
        # Again from the start, too: one of them may have started another meanwhile.
        family = list({member.pid: member for member in (*filter(_alive, family), *_family(process.pid))}.values())
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _family(leader: int) -> list[psutil.Process]:
    """The processes below `leader` and those of its session whose parent has ended; not `leader` itself.

    Launchers such as mpirun give their ranks process groups of their own, and some give them sessions.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        found = {child.pid: child for child in psutil.Process(leader).children(recursive=True)}
    for candidate in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(candidate.pid) == leader and candidate.pid != leader:
                found[candidate.pid] = candidate
    return [member for member in found.values() if _alive(member)]


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def last_word(lines: Sequence[str]) -> str:
    """The last line that tells of the cause, or else the last line; empty when there is none."""
    words = [line for line in lines if not _INFORMATION.match(line) and not _AFTERWARDS.match(line)]
    return (words or lines)[-1] if lines else ""
