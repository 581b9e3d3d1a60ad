"""Reads the stacks of a node's processes, and what the kernel says of them.

On a thread of its own: a process may take seconds to answer, or never do so, and one that is stopped is not asked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfcollective._base.clock import SYSTEM_CLOCK, Deadline
from tfcollective._base.processes import STACKS_SIGNAL, signal_main_thread, signals_of
from tfcollective._base.stacks import Activity, StackFiles, TaskStacks, parse
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._control.messages import ReportStacks

_SAMPLE_S = 1.0
_LOOK_S = 0.02  # the kernel tells nobody when a handler of another process returns
_NOT_ASKED = "it has not called tfcollective.init(), or its program is not Python"


@dataclass(frozen=True)
class Source:
    """Where the stacks of a task come from: the process of its command, and the files of its program, which is that
    process or one below it."""

    task: TaskKey
    pid: int
    files: StackFiles


class StackReader:
    """Reads stacks, one request after the other.

    Args:
        report: called with those of each task, on another thread.
    """

    def __init__(self, report: Callable[[ReportStacks], None]) -> None:
        self._report = report
        self._lock = threading.Lock()  # over the files into which processes write

    def ask(self, number: int, sources: Sequence[Source]) -> None:
        """Reads them, for the dump with this number. Does not wait."""
        threading.Thread(target=self._read, args=(number, sources), name="tfc-stacks", daemon=True).start()

    def _read(self, number: int, sources: Sequence[Source]) -> None:
        with self._lock:
            for one in read_stacks(sources):
                self._report(ReportStacks(number, one))


def read_stacks(
    sources: Sequence[Source], patience: float = TIMING.stacks, limit: float = 2 * TIMING.stacks
) -> tuple[TaskStacks, ...]:
    """The stacks of these tasks.

    Args:
        sources: where they come from.
        patience: how long (s) a program's own thread may take before a signal asks in its place.
        limit: how long (s) all may take together; a program that takes longer has none.
    """
    deadline, sampled = Deadline.after(limit), Deadline.after(_SAMPLE_S)
    with ExitStack() as opened:
        reads = [opened.enter_context(_Read(one, patience)) for one in sources]
        while sum(one.look() for one in reads) and not deadline.expired():
            SYSTEM_CLOCK.sleep(_LOOK_S)
        SYSTEM_CLOCK.sleep(sampled.remaining())
        return tuple(one.result(limit) for one in reads)


class _Read:
    """One task's answer as it comes. A context manager: the program is asked when it is opened."""

    def __init__(self, source: Source, patience: float) -> None:
        self._source = source
        self._files = source.files
        self._patience = patience
        program = _program_of(source)
        self._pid = source.pid if program is None else program
        self._before = _Sample.of(self._pid)
        self._missing = _NOT_ASKED if program is None else ""
        self._pipe: int | None = None
        self._sleeps: Deadline | None = None  # at which its thread, which sleeps, does not get Python's lock
        self._signalled = False

    def __enter__(self) -> _Read:
        if not self._missing and self._before.answers:
            self._files.answer.unlink(missing_ok=True)
            with suppress(OSError):  # it has ended, or its pipe is full of requests: the next answer is for all
                self._pipe = os.open(self._files.requests, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.truncate(self._files.handler_text, 0)
                os.write(self._pipe, b"?")
        return self

    def __exit__(self, *unused: object) -> None:
        if self._pipe is not None:
            os.close(self._pipe)

    def look(self) -> bool:
        """True while the answer may still come; asks by a signal when it is time to."""
        asked = self._pipe is not None and not self._missing
        if not asked or self._text() is not None or not _Sample.of(self._pid).answers:
            return False
        if self._sleeps is None and self._thread_sleeps():
            self._sleeps = Deadline.after(self._patience)
        if self._sleeps is not None and self._sleeps.expired() and not self._signalled:
            self._ask_by_signal()
        return True

    def _thread_sleeps(self) -> bool:
        """True if its thread sleeps although there is a request. One that waited for that has been woken by it, and has
        got no processor yet otherwise."""
        with suppress(OSError):
            return _Sample.of(self._pid, f"task/{self._files.thread.read_text('ascii')}/").state == "S"
        return False

    def _ask_by_signal(self) -> None:
        """Asks a program that runs no Python, as its thread does not get the lock: a call into C holds it."""
        self._signalled = True
        signals = signals_of(self._pid)
        if signals.blocks(STACKS_SIGNAL):
            self._missing = "a call into C holds Python's lock, and its main thread blocks signals"
            return
        with suppress(OSError):  # it has ended, or has closed the file
            if not signals.awaits(STACKS_SIGNAL) and _has_open(self._pid, self._files.handler_text.stat()):
                signal_main_thread(self._pid, STACKS_SIGNAL)

    def _text(self) -> str | None:
        """The answer of the thread, or that of the handler once that has written all: it has begun, and runs no
        longer."""
        with suppress(OSError):
            return self._files.answer.read_text("utf-8")
        with suppress(OSError):
            if self._signalled and _size(self._files.handler_text):
                signals = signals_of(self._pid)
                if not signals.awaits(STACKS_SIGNAL) and not signals.blocks(STACKS_SIGNAL):
                    return self._files.handler_text.read_text("utf-8", errors="replace")
        return None

    def result(self, limit: float) -> TaskStacks:
        """The answer as far as it has come."""
        after = _Sample.of(self._pid)
        text = None if self._pipe is None else self._text()
        threads = parse(text or "", self._full_path)
        missing = self._missing or f"it did not write them within {limit:g} s"
        known = bool(threads) or not after.answers  # what has ended or is stopped has none, as its activity says
        about = self._source.task, self._pid, self._before.until(after)
        return TaskStacks(*about, threads, "" if known else missing)

    def _full_path(self, name: str) -> str:
        with suppress(OSError):
            return name if name.startswith("<") else str(Path(f"/proc/{self._pid}/cwd").readlink() / name)
        return name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _program_of(source: Source) -> int | None:
    """The process that writes its stacks when it is asked: that of the command, or the first one below it; None if
    there is none."""
    with suppress(psutil.Error, OSError):
        pipe = source.files.requests.stat()
        for pid in _tree(psutil.Process(source.pid)):
            if _has_open(pid, pipe):
                return pid
    return None


def _tree(process: psutil.Process) -> Iterator[int]:
    """Yields a process and those below it, parents first."""
    yield process.pid
    with suppress(psutil.Error):
        for child in process.children():
            yield from _tree(child)


def _has_open(pid: int, file: os.stat_result) -> bool:
    """True if a process has this file open, and has not closed it to use its number for another one."""
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(one.stat(), file):
                return True
    return False


@dataclass(frozen=True)
class _Sample:
    """The kernel's account of a process at a moment; its figures count from its start."""

    at: float
    state: str = ""
    cpu_seconds: float = 0.0
    faults: int = 0
    function: str = ""

    @classmethod
    def of(cls, pid: int, thread: str = "") -> _Sample:
        """That of now; of one thread, if its folder is named."""
        now = SYSTEM_CLOCK.monotonic()
        try:
            text = Path(f"/proc/{pid}/{thread}stat").read_text("utf-8", errors="replace")
        except OSError:
            return cls(now)
        fields = text.rpartition(") ")[2].split()  # the name before may have blanks
        function = ""
        with suppress(OSError):
            function = Path(f"/proc/{pid}/{thread}wchan").read_text("ascii", errors="replace")
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(now, fields[0], cpu_seconds, int(fields[9]), "" if function == "0" else function)

    @property
    def answers(self) -> bool:
        """False for a process that has ended or is stopped."""
        return self.state not in ("", "Z", "X", "T", "t")

    def until(self, later: _Sample) -> Activity:
        """What the process did from this sample to a later one. Of two that differ in whether it ran, none counts."""
        state = "S" if later.state in ("R", "D") and later.state != self.state else later.state
        cpu_seconds, faults = max(0.0, later.cpu_seconds - self.cpu_seconds), max(0, later.faults - self.faults)
        return Activity(state, later.at - self.at, cpu_seconds, faults, later.function)
