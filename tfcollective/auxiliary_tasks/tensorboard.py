"""TensorBoard in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol

from tfcollective._base.clock import SYSTEM_CLOCK, Clock, Deadline
from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective._base.log import get_logger
from tfcollective._base.processes import end_process, spawn
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.task_specs import TENSORBOARD_LINGER_S
from tfcollective._base.timing import TIMING
from tfcollective.auxiliary_tasks import _training_flag as training_flag
from tfcollective.files import Place, append_tail, find_files, is_url

__all__ = ["EventFollower", "TensorBoardOptions", "TensorBoardProcess", "run_tensorboard"]

_EVENTS_EVERY_S = 5.0
_POLL_S = 1.0
_LAST_LINES = 20
_URL = re.compile(r"TensorBoard \S+ at (http://\S+)")
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class TensorBoardOptions:
    """The options with which TensorBoard is started.

    Attributes:
        logdir: what it shows; may come into being later. Of a URL (``hdfs://``, ``s3://``, ...) it shows copies.
        host: the address to listen at. TensorBoard has no authentication: beyond loopback, everybody who reaches it
            sees what is logged.
        port: where it listens; 0: at a free port, which it finds itself.
        extra_args: further arguments, as a list or as one text (``"--samples_per_plugin images=50"``).
        start_timeout: how long it may take to say where it listens, in seconds.
    """

    logdir: Place
    host: str = "127.0.0.1"
    port: int = 0
    extra_args: Sequence[str] | str = ()
    start_timeout: float = Settings.start_timeout

    def command(self) -> list[str]:
        """The command line.

        Raises:
            ConfigError: the extra arguments name another log directory, or are not well quoted.
        """
        extra = self._extra()
        names = {argument.partition("=")[0] for argument in extra}
        if names & {"--logdir", "--logdir_spec"}:
            raise ConfigError("extra_args: --logdir is not allowed: set the field logdir instead")
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(self.logdir)]
        if not names & {"--host", "--bind_all"}:
            command += ["--host", self.host]
        if "--port" not in names:
            command += ["--port", str(self.port)]
        if "--load_fast" not in names:
            command += ["--load_fast", "false"]  # one process, not two
        return command + extra

    def _extra(self) -> list[str]:
        if not isinstance(self.extra_args, str):
            return [str(argument) for argument in self.extra_args]
        try:
            return shlex.split(self.extra_args)
        except ValueError as error:
            raise ConfigError(f"extra_args: {error}: {self.extra_args!r}") from error


class TensorBoardProcess:
    """A TensorBoard that listens. It ends with :meth:`close`, and when the thread that started it ends."""

    def __init__(self, process: subprocess.Popen[bytes], output: _Output) -> None:
        self._process = process
        self._output = output

    @classmethod
    def start(cls, options: TensorBoardOptions) -> TensorBoardProcess:
        """Starts it and waits until it listens.

        Raises:
            ConfigError: TensorBoard is not installed, or an option is wrong.
            LaunchError: it ended, or did not say in time where it listens; with its last lines.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("TensorBoard is not installed: pip install 'tfcollective[tensorboard]'")
        process = spawn(options.command(), environ_snapshot(), None)
        output = _Output(process)
        started = cls(process, output)
        if not output.wait_for_url(options.start_timeout):
            code = output.code_at_end()
            started.close()
            what = f"ended with code {code}" if code is not None else f"did not start in {options.start_timeout:g} s"
            raise LaunchError(f"TensorBoard {what}: {output.last_lines()}")
        _LOG.info("TensorBoard listens on %s", started.url)
        return started

    @property
    def url(self) -> str:
        """The URL for a browser."""
        return self._output.url

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._process.poll() is None

    def last_lines(self) -> str:
        """Returns the last lines of its output."""
        return self._output.last_lines()

    def close(self) -> None:
        """Ends it. A second call does nothing."""
        end_process(self._process, TIMING.tensorboard)
        self._output.close()

    def __enter__(self) -> TensorBoardProcess:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class _Output:
    """Reads what the process writes, so that it never waits for a reader, and finds the address in it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.url = ""
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._known = threading.Event()  # or it is known that none will come
        self._pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
        self._open = len(self._pipes)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in self._pipes]
        for thread in self._threads:
            thread.start()

    def wait_for_url(self, seconds: float) -> bool:
        """True if the address came in time; returns at once when the process has ended."""
        self._known.wait(seconds)
        return bool(self.url)

    def code_at_end(self) -> int | None:
        """The exit code if the process has ended, or does so now that it has closed both streams; else None."""
        if self._open:
            return self._process.poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(TIMING.tensorboard)
        return None

    def last_lines(self) -> str:
        """The last lines of both streams."""
        return "\n".join(self._lines).strip() or "it said nothing"

    def close(self) -> None:
        """Waits for the rest of the output; called when the process has ended."""
        for thread in self._threads:
            thread.join(TIMING.tensorboard)

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                match = _URL.search(text)
                if match and not self.url:
                    self.url = match[1]
                    self._known.set()
        with self._lock:
            self._open -= 1
            if not self._open:
                self._known.set()


class _Alive(Protocol):
    @property
    def alive(self) -> bool: ...

    def last_lines(self) -> str: ...


def run_tensorboard(
    options: TensorBoardOptions,
    *,
    training_ended: Callable[[], bool] | None = None,
    linger: float = TENSORBOARD_LINGER_S,
    lifetime: float = float("inf"),
    on_url: Callable[[str], object] | None = None,
) -> None:
    """The TensorBoard task: shows the log directory until training has ended, and a moment longer.

    Args:
        options: how it is started.
        training_ended: whether training has; the chief's ``announced_training`` of the log directory if None.
        linger: how long it stays then, in seconds.
        lifetime: how long it stays at most, in seconds.
        on_url: called with the address once it listens.

    Raises:
        ConfigError: TensorBoard is not installed, or an option is wrong.
        LaunchError: it did not start, or ended by itself.
    """
    if not 0 <= linger < threading.TIMEOUT_MAX:
        raise ConfigError(f"linger: expected seconds, 0 or more, got {linger!r}")
    ended = training_ended or (lambda: training_flag.training_ended(options.logdir))
    end = Deadline.after(lifetime)
    with _shown_here(options) as (options, look), TensorBoardProcess.start(options) as process:
        if on_url is not None:
            on_url(process.url)

        def pause(seconds: float) -> None:
            look()
            threading.Event().wait(seconds)

        _stay(process, ended, linger, end, SYSTEM_CLOCK, pause)


@contextlib.contextmanager
def _shown_here(options: TensorBoardOptions) -> Iterator[tuple[TensorBoardOptions, Callable[[], object]]]:
    """Yields the options with a log directory of this machine, and a function to call now and then to update it."""
    if not is_url(options.logdir):
        yield options, lambda: None
        return
    with tempfile.TemporaryDirectory(prefix="tfcollective-events-") as directory:
        follower = EventFollower(str(options.logdir).rstrip("/"), Path(directory))
        follower.look()
        yield replace(options, logdir=directory), follower.look


class EventFollower:
    """Keeps copies of the event files at and below a URL up to date, as TensorBoard reads only files of this machine.

    Args:
        url: where they are written, and only ever grow.
        directory: where the copies go.
        clock: for tests.
    """

    def __init__(self, url: str, directory: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url = url
        self._directory = directory
        self._clock = clock
        self._next = clock.monotonic()

    def look(self) -> None:
        """Copies what is new, at most every few seconds. A file that cannot be read now is tried again later."""
        if self._clock.monotonic() < self._next:
            return
        try:
            for name, facts in find_files(self._url).items():
                if ".tfevents." in name:
                    append_tail(f"{self._url}/{name}", facts.size, self._directory / name)
        except OSError as error:
            _LOG.warning("TensorBoard shows what it has: %s", error)
        self._next = self._clock.monotonic() + _EVENTS_EVERY_S


def _stay(
    process: _Alive,
    ended: Callable[[], bool],
    linger: float,
    end: Deadline,
    clock: Clock,
    pause: Callable[[float], object],
) -> None:
    """Returns when it is time to end."""
    lingering = False
    while not end.expired(clock):
        if not process.alive:
            raise LaunchError(f"TensorBoard ended by itself: {process.last_lines()}")
        if not lingering and ended():
            lingering = True
            end = Deadline(min(end.at, clock.monotonic() + linger))
            continue
        pause(min(_POLL_S, end.remaining(clock)))  # a file that another node writes gives no notice
