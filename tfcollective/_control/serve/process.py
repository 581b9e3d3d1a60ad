"""A coordinator in a process of its own, for jobs without a launcher: how it is started.

It ends when the process that started it ends, however that ends: rank 0, whose ``init()`` starts it. The other half is
``python -m tfcollective._control.serve``.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import decode, encode_line
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.exit_codes import signal_name
from tfcollective._base.processes import end_process, program_of
from tfcollective._base.settings import Settings
from tfcollective._base.timing import TIMING, Timing
from tfcollective._base.topology import Endpoint
from tfcollective._control.wire.protocol import ServerOptions

_MAX_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class CoordinatorConfig:
    """The configuration of the process: one line of JSON on its stdin, never in argv.

    Attributes:
        options: the coordinator's.
        owner: the process to end with.
        log_level: what it logs.
        runtime_dir: where to leave a record for ``tfcollective status``.
        command: what the job runs, for people.
    """

    options: ServerOptions
    owner: int
    log_level: str
    runtime_dir: str
    command: tuple[str, ...]

    @classmethod
    def of_this_process(cls, options: ServerOptions, settings: Settings) -> CoordinatorConfig:
        """Returns the configuration of a coordinator that ends with this process."""
        return cls(options, os.getpid(), settings.log_level, str(settings.jobs_directory()), tuple(sys.orig_argv))


@dataclass(frozen=True)
class CoordinatorAnswer:
    """The one message of the process, a line on a descriptor of its own: its address, or why it does not listen."""

    endpoint: Endpoint | None = None
    error: str = ""


class CoordinatorProcess:
    """The child, as the process that started it holds it."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: Endpoint) -> None:
        self._process = process
        self.endpoint = endpoint
        """Where it listens."""

    @classmethod
    def start(cls, config: CoordinatorConfig, environ: Mapping[str, str]) -> CoordinatorProcess:
        """Starts it and waits until it listens. Raises CoordinatorError that says why it does not."""
        child = spawn(environ)
        try:
            return cls(child.process, introduce(child, config))
        except BaseException:
            child.process.kill()
            child.process.wait()
            raise
        finally:
            child.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it. A second call does nothing."""
        end_process(self._process, TIMING.coordinator)


@dataclass(frozen=True)
class Child:
    """A process that waits for its configuration.

    Attributes:
        process: with a pipe as its stdin.
        answer: the read end of the pipe on which it answers. It is not its stdout: what a site has Python run at each
            start (``sitecustomize``, a ``.pth`` file) may print there.
    """

    process: subprocess.Popen[bytes]
    answer: BinaryIO

    def close(self) -> None:
        """Closes this process's ends of both pipes."""
        for pipe in (self.process.stdin, self.answer):
            if pipe is not None:
                pipe.close()


def spawn(environ: Mapping[str, str]) -> Child:
    """A child that waits for its configuration (:func:`introduce`). It finds modules where this process does, whatever
    has been done to ``sys.path``. Raises CoordinatorError when it cannot be started."""
    places = [place for place in sys.path if isinstance(place, str) and place]
    with contextlib.ExitStack() as failed:
        try:
            ours, its = os.pipe()
            answer = failed.enter_context(os.fdopen(ours, "rb", buffering=0))
            with os.fdopen(its, "wb", buffering=0):
                process = subprocess.Popen(
                    [sys.executable, *program_of("tfcollective._control.serve.__main__"), str(its)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env={**environ, "PYTHONPATH": os.pathsep.join(places)},
                    bufsize=0,
                    start_new_session=True,  # a Ctrl-C at the terminal is for the ranks: they still have to leave
                    pass_fds=(its,),
                )
        except OSError as error:
            raise CoordinatorError(f"cannot start the coordinator: {error}") from error
        failed.pop_all()
    return Child(process, answer)


def introduce(child: Child, config: CoordinatorConfig, timing: Timing = TIMING) -> Endpoint:
    """Tells the child what to do; where it listens. Raises CoordinatorError with the reason if it does not."""
    process = child.process
    assert process.stdin is not None
    # The others wait as long for rank 0.
    timeout = max(timing.agent_start, config.options.start_timeout)
    deadline = Deadline.after(timeout)
    with contextlib.suppress(BrokenPipeError):  # then it has ended, and its answer says so
        _write(process.stdin.fileno(), encode_line(config), deadline)
    line = _read_line(child.answer.fileno(), deadline)
    try:
        answer = decode(line, CoordinatorAnswer, "the coordinator's answer")
    except ConfigError as error:
        raise CoordinatorError(
            f"the coordinator's process (pid {process.pid}) {_fate(process, timeout, timing)}"
        ) from error
    if answer.endpoint is None:
        raise CoordinatorError(answer.error)
    return answer.endpoint


def _fate(process: subprocess.Popen[bytes], timeout: float, timing: Timing) -> str:
    """Describes the end of a child that has not reported its address."""
    try:
        code = process.wait(timing.coordinator)
    except subprocess.TimeoutExpired:
        return f"has not begun to listen within {timeout:g} s: is this machine too busy?"
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"{how} before it listened: its error is above, on stderr"


def _write(descriptor: int, data: bytes, deadline: Deadline) -> None:
    """Writes what the reader takes before the deadline: the configuration of many ranks does not fit into the pipe."""
    os.set_blocking(descriptor, False)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while data and poll.poll(deadline.remaining() * 1000):
        data = data[os.write(descriptor, data) :]


def _read_line(descriptor: int, deadline: Deadline) -> bytes:
    """Reads up to a line feed, the end, or the deadline."""
    line = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        if not poll.poll(deadline.remaining() * 1000):
            return line
        data = os.read(descriptor, _MAX_LINE_BYTES)
        if not data:
            return line
        line += data
    return line
