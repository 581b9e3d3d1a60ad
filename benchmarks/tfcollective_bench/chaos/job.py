"""A job under test, from outside: its launcher, the journals of its ranks, when it hangs, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from tfcollective._base.settings import environ_snapshot, variable
from tfcollective_bench.chaos.progress import Progress
from tfcollective_bench.chaos.rank import STOP_FILE, Order, pipe_of
from tfcollective_bench.interrupts import interrupts_deferred
from tfcollective_bench.journal import JournalReader, Line
from tfcollective_bench.ranks import clean, thread_variables, working_folder

__all__ = ["Usage", "WatchedJob", "WentWrong"]

_RANK = "tfcollective_bench.chaos.rank"
_MARK = "TFC_CHAOS_DIRECTORY"  # in the environment of all processes of the job
_LOOK_S = 0.02
_START_S = 180.0
_END_S = 90.0
_GONE_S = 10.0
_STACKS_S = 3.0
_USAGE_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_TAIL_BYTES = 4000
_CHANGE = re.compile(r"  generation \d+: ")  # a line of the launcher's report


class WentWrong(Exception):  # noqa: N818  what the run reports, not a fault of this process
    """The job hangs, or has ended though it should not have."""


@dataclass(frozen=True)
class Usage:
    """The resources held at ``at`` (s, monotonic clock) by a process that lives as long as the job."""

    what: str
    at: float
    descriptors: int
    threads: int
    memory: int


class WatchedJob:
    """A context manager: an elastic job that trains :mod:`.model` in a directory of its own.

    Args:
        ranks: how many.
        seed: of the data.
        step_ms: how long a step takes at least.
        framework: ``numpy`` or ``tensorflow``.
        hang_s: it hangs when no step is completed for so long.
    """

    def __init__(self, ranks: int, seed: int, step_ms: float, framework: str, hang_s: float) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tfc-chaos-"))
        self.progress = Progress()
        self.usage: list[Usage] = []
        self._ranks = ranks
        self._arguments = ["--min-np", "1", "-m", _RANK]
        self._arguments += [str(self.directory), str(seed), f"{step_ms:g}", framework]
        self._hang_s = hang_s
        self._reader = JournalReader(self.directory)
        self._looked = self._used = 0.0
        self._processes: dict[str, psutil.Process] = {}  # by task
        self._gone: set[str] = set()
        self._shared = _shared_memory()

    def __enter__(self) -> WatchedJob:
        runtime, temporary = self.directory / "runtime", self.directory / "tmp"
        runtime.mkdir(0o700)
        temporary.mkdir()
        own = {
            variable("runtime_dir"): str(runtime),
            "TMPDIR": str(temporary),
            _MARK: str(self.directory),
            "PYTHONFAULTHANDLER": "1",
            **thread_variables(self._ranks),
        }
        command = [sys.executable, "-m", "tfcollective", "run", "-np", str(self._ranks), *self._arguments]
        with (self.directory / "output").open("wb") as output:
            self._launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**clean(environ_snapshot()), **own},
                cwd=working_folder(),
                start_new_session=True,
            )
        self._looked = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with interrupts_deferred():
            if self._launcher.poll() is None:
                self._launcher.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._launcher.wait(_GONE_S)
            for process in self._family():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if self._launcher.poll() is None:
                self._launcher.kill()
            self._launcher.wait()
            if kind is not None:  # not by what the job did: nothing of it is wanted
                shutil.rmtree(self.directory, ignore_errors=True)

    # ---- looking ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Takes what is new. Raises WentWrong when the job has ended or hangs."""
        self._take()
        if self._launcher.poll() is not None:
            raise WentWrong(f"the job ended with code {self._launcher.returncode}")
        now = time.monotonic()
        if now - self._used > _USAGE_S:
            self._used = now
            self.usage.extend(self._look_at_usage(now))
        limit = self._hang_s if self.progress.steps else max(self._hang_s, _START_S)
        if now - max(self.progress.last_at, self._looked) > limit:
            raise WentWrong(f"no step was completed for {limit:g} s")

    def _take(self) -> None:
        ended = [task for task in self._processes if not self.lives(task)]  # before what they wrote last is read
        self.progress.take(self._reader.read())
        for task in ended:
            self._reader.forget(task)
            del self._processes[task]
            self._gone.add(task)
        for task in self.progress.newest.keys() - self._processes.keys() - self._gone:
            try:
                self._processes[task] = psutil.Process(self.progress.newest[task].pid)
            except psutil.Error:
                self._gone.add(task)  # what it wrote was whole before it was read

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Looks until the condition holds; whether it did in time."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                return False
            self.look()
            time.sleep(_LOOK_S)  # what ranks note in files gives no notice
        return True

    def pause(self, seconds: float) -> None:
        """Looks for so long."""
        self.until(lambda: False, seconds)

    def members(self) -> list[Line]:
        """The newest lines of the processes of the newest world, in rank order, as far as they live."""
        found = [line for line in self.progress.newest.values() if line.size and self.lives(line.task)]
        generation = max((line.generation for line in found), default=0)
        return sorted((line for line in found if line.generation == generation), key=lambda line: line.rank)

    def lives(self, task: str) -> bool:
        """True if the task's process has not ended."""
        process = self._processes.get(task)
        with contextlib.suppress(psutil.Error):
            return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    def started(self) -> list[psutil.Process]:
        """The processes of ranks, also those that have not begun their program."""
        found = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._launcher.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if _RANK in process.cmdline():
                        found.append(process)
        return found

    def _look_at_usage(self, now: float) -> Iterator[Usage]:
        ranks = {process.pid for process in self.started()}
        watched = {"launcher": self._launcher.pid}
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._launcher.pid).children()
            watched |= {f"agent (pid {child.pid})": child.pid for child in children if child.pid not in ranks}
        watched |= {f"{line.task} (pid {line.pid})": line.pid for line in self.members()}
        for what, pid in watched.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                yield Usage(what, now, process.num_fds(), process.num_threads(), process.memory_info().rss)

    # ---- acting ----------------------------------------------------------------------------------------------------

    def signal(self, task: str, number: int) -> float:
        """Sends a signal to a rank; returns when (s, monotonic clock)."""
        at = time.monotonic()
        with contextlib.suppress(KeyError, psutil.Error):  # it has ended meanwhile
            self._processes[task].send_signal(number)
        return at

    def order(self, task: str, order: Order) -> bool:
        """Orders a rank to do something to itself. Returns false if the rank is not listening."""
        try:
            pipe = os.open(pipe_of(self.directory, task), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(pipe, "wb") as file:
            file.write(order.encode())
        return True

    def finish(self) -> int:
        """Lets the ranks complete the training. Returns the launcher's exit code. Raises WentWrong if it does not
        end."""
        (self.directory / STOP_FILE).touch()
        try:
            code = self._launcher.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise WentWrong(f"the job had not ended {_END_S:g} s after it was asked to") from error
        finally:
            self._take()
        return code

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def stacks(self) -> str:
        """Returns the stacks of all ranks' threads, and the end of the job's output."""
        for process in self.started():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1)
        time.sleep(_STACKS_S)  # none of them says when it has written its stacks, and one may hang
        texts = []
        for path in sorted(self.directory.glob("*.stacks")):
            text = path.read_text("utf-8", "replace")
            if text:
                texts.append(f"== {path.stem}\n{text}")
        return "\n".join([*texts, f"== output\n{self.output_tail()}"])

    def changes(self) -> tuple[str, ...]:
        """Returns the entry of the launcher's report for each change of the world."""
        text = (self.directory / "output").read_text("utf-8", "replace")
        return tuple(line.strip() for line in text.splitlines() if _CHANGE.match(line))

    def output_tail(self) -> str:
        """The last lines of launcher and ranks."""
        data = (self.directory / "output").read_bytes()
        return data[-_TAIL_BYTES:].decode("utf-8", "replace")

    def left_behind(self) -> list[str]:
        """Returns what the job has left behind: processes, and with them their sockets and memory; files; shared memory
        with a name."""
        limit = time.monotonic() + _GONE_S
        while self._family() and time.monotonic() < limit:
            time.sleep(_LOOK_S)  # the end of processes that are not our children gives no notice
        found = [f"process {one.pid}" for one in self._family()]
        for folder in ("tmp", "runtime"):
            found += [str(path) for path in sorted((self.directory / folder).rglob("*")) if not path.is_dir()]
        return found + [str(_SHARED_MEMORY / name) for name in sorted(_shared_memory() - self._shared)]

    def _family(self) -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if _mark_of(one) == str(self.directory)]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        environment: Mapping[str, str] = process.environ()
        return environment.get(_MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None  # another user's, or gone


def _shared_memory() -> set[str]:
    return {path.name for path in _SHARED_MEMORY.glob("tfc*")} if _SHARED_MEMORY.is_dir() else set()
