"""The stacks of a process that lives: how it writes them when its agent asks, and the value that they become.

A thread answers, which takes Python's lock: it reads the frames of the others while none of them runs. Where it does
not get the lock, because a call into C holds it, a signal makes `faulthandler` write them, which needs no lock; while
other threads run it would read frames that change, and crash. See docs/design/failure.md.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

from tfcollective._base.private_directory import write_private
from tfcollective._base.processes import STACKS_SIGNAL
from tfcollective._base.tasks import TaskKey
from tfcollective._base.tracebacks import Frame, frames_of

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MOST_FRAMES = 60  # of a thread, the innermost ones
_MOST_THREADS = 20
_BUSY = 0.5  # of the time on a processor: less is waiting
_MANY_FAULTS = 100.0  # pages a second that come from a disk
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a disk, a device or a mount"}
_writes: tuple[int, str] | None = None  # the process that has called write_when_asked, and for which file
_open: list[TextIO] = []  # the handler knows the number of the file: it is never closed


@dataclass(frozen=True)
class StackFiles:
    """The files by which an agent gets the stacks of a process, beside its failure file."""

    failure_file: str

    @property
    def requests(self) -> Path:
        """A pipe: what the agent writes into it is a request."""
        return Path(f"{self.failure_file}.stacks-requests")

    @property
    def thread(self) -> Path:
        """Holds the kernel's number of the thread that answers."""
        return Path(f"{self.failure_file}.stacks-thread")

    @property
    def answer(self) -> Path:
        """The answer of the thread; it is there when it is complete."""
        return Path(f"{self.failure_file}.stacks")

    @property
    def handler_text(self) -> Path:
        """The text to which the handler of the signal adds."""
        return Path(f"{self.failure_file}.stacks-handler")


def write_when_asked(failure_file: str) -> None:
    """Has this process write its stacks whenever its agent asks, from now to its end. OSError if that cannot be
    prepared."""
    global _writes
    if _writes == (os.getpid(), failure_file):
        return
    files = StackFiles(failure_file)
    with suppress(FileExistsError):
        os.mkfifo(files.requests, 0o600)
    requests = os.open(files.requests, os.O_RDWR | os.O_CLOEXEC)  # read and write: it has no end without an agent
    text = os.open(files.handler_text, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    _open.append(os.fdopen(text, "a"))
    faulthandler.register(STACKS_SIGNAL, file=_open[-1], all_threads=True)
    thread = threading.Thread(target=_answer, args=(requests, files), name="tfcollective-stacks", daemon=True)
    thread.start()
    write_private(files.thread, str(thread.native_id).encode())
    _writes = os.getpid(), failure_file


def _answer(requests: int, files: StackFiles) -> None:
    """Answers requests until the program closes the pipe, or the job's directory is gone."""
    with suppress(OSError):
        pipe = os.fstat(requests)
        while os.path.samestat(pipe, os.fstat(requests)):  # else the number is another file's by now
            os.read(requests, 1 << 12)
            write_private(files.answer, "\n\n".join(_written_threads()).encode("utf-8", "backslashreplace"))


def _written_threads() -> Iterator[str]:
    """Yields the threads of this process as `faulthandler` writes them when the main thread takes the signal."""
    main = threading.main_thread().ident
    for thread, frame in sys._current_frames().items():
        head = f"{'Current thread' if thread == main else 'Thread'} {thread:#x} (most recent call first):"
        calls = islice(traceback.walk_stack(frame), _MOST_FRAMES)
        lines = [f'  File "{one.f_code.co_filename}", line {line} in {one.f_code.co_name}' for one, line in calls]
        yield "\n".join([head, *lines])


@dataclass(frozen=True)
class Activity:
    """The kernel's account of a process over a moment.

    Attributes:
        state: the letter of its main thread in /proc, of which R (it runs, or could) and D (it waits for a disk) lasted
            throughout; S: it waits; T: it is stopped; empty: it has ended.
        seconds: how long the moment was.
        cpu_seconds: the CPU time of all threads in it.
        faults: the pages that came from a disk in it.
        function: the kernel's function in which its main thread waits, if the kernel says so.
    """

    state: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    faults: int = 0
    function: str = ""

    @property
    def kind(self) -> str:
        """What the process does, without figures."""
        if not self.state or self.state in "ZX":
            return "ended"
        if self.state in _STATES:
            return _STATES[self.state]
        if self.faults > _MANY_FAULTS * self.seconds:
            return "swapping"
        return "computing" if self.state == "R" or self.cpu_seconds > _BUSY * self.seconds else "waiting"

    def __str__(self) -> str:
        if self.kind == "swapping":
            return f"swapping ({self.faults} pages from the disk in {self.seconds:.1f} s)"
        if self.kind in ("computing", "waiting"):
            where = f", in the kernel's {self.function}" if self.function and self.kind == "waiting" else ""
            return f"{self.kind} ({self.cpu_seconds:.2f} s of CPU time in {self.seconds:.1f} s{where})"
        return self.kind


@dataclass(frozen=True)
class TaskStacks:
    """The stacks of the process of one task.

    Attributes:
        task: whose.
        pid: of its process.
        activity: what the kernel says of it.
        threads: the frames of its threads, the outermost call first: the main thread, then those others that are in the
            program's own code.
        missing: why there are none; empty if there are.
    """

    task: TaskKey
    pid: int
    activity: Activity
    threads: tuple[tuple[Frame, ...], ...] = ()
    missing: str = ""


def parse(text: str, full_path: Callable[[str], str] = str) -> tuple[tuple[Frame, ...], ...]:
    """The threads in a text of `faulthandler`, as in :attr:`TaskStacks.threads`. ``full_path`` gives the path of a file
    by its name in the process."""
    found = sorted(_threads(text, full_path), key=lambda one: not one[0])  # stable
    main = [frames for current, frames in found if current]
    others = [frames for current, frames in found if not current and any(not frame.package for frame in frames)]
    return tuple((main + others)[:_MOST_THREADS])


def _threads(text: str, full_path: Callable[[str], str]) -> Iterator[tuple[bool, tuple[Frame, ...]]]:
    """Yields whether a thread is the one that took the signal, the main thread, and its frames."""
    for part in text.strip().split("\n\n"):
        head, *lines = part.splitlines() or [""]
        calls = [match for line in lines if (match := _FRAME.fullmatch(line)) is not None]
        stack = [traceback.FrameSummary(full_path(one[1]), int(one[2]), one[3]) for one in calls[:_MOST_FRAMES]]
        if head.startswith(("Thread ", "Current thread ")):
            yield head.startswith("Current"), frames_of(reversed(stack))
