"""Looks for the notice that a node is preempted: a file or a command that the user has named."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.log import get_logger
from tfcollective._base.processes import signal_group, spawn, start_as_a_shell_does
from tfcollective._base.timing import TIMING, Timing

_LOG = get_logger(__name__)


class PreemptionWatch:
    """Looks every few seconds until there is a notice. For one thread, which never waits; it must give to
    :meth:`ended` the processes whose end it learns of.

    Args:
        file: the node is preempted once this file exists; None: no file is a notice.
        command: the node is preempted once this command ends with exit code 0; empty: none. Any other end means that
            it stays, and so does a command that takes longer than :attr:`Timing.preemption_command`, which is killed.
        environ: the command's environment.
        cwd: its working directory; None: this process's.

    Attributes:
        notice: the notice that the node is preempted; "": there is none so far.
    """

    def __init__(
        self,
        file: str | None,
        command: Sequence[str],
        environ: Mapping[str, str],
        cwd: str | None = None,
        limits: Timing = TIMING,
        clock: Clock = SYSTEM_CLOCK,
        start: Callable[..., subprocess.Popen[bytes]] = spawn,
    ) -> None:
        self._file = None if file is None else Path(file)
        self._command = tuple(command)
        self._environ = environ
        self._cwd = cwd
        self._limits = limits
        self._clock = clock
        self._start = start
        self._running: subprocess.Popen[bytes] | None = None
        self._troubled = False
        self._next: float | None = clock.monotonic() if file is not None or command else None
        self._kill_at: float | None = None
        self.notice = ""

    @property
    def wake_at(self) -> float | None:
        """The time (monotonic) at which :meth:`tick` has something to do, or None."""
        return min((at for at in (self._next, self._kill_at) if at is not None), default=None)

    def tick(self) -> None:
        """Looks, if it is time to."""
        now = self._clock.monotonic()
        if self._kill_at is not None and now >= self._kill_at and self._running is not None:
            self._kill_at = None
            self._note(f"takes longer than {self._limits.preemption_command:g} s and is killed")
            signal_group(self._running.pid, signal.SIGKILL)
        if self._next is None or now < self._next:
            return
        self._next = now + self._limits.preemption_look
        if self._file is not None and self._file.exists():
            self._found(f"there is a file {self._file}")
        elif self._command and self._running is None:
            self._run(now)

    def ended(self, pid: int, status: int) -> None:
        """A process has ended, with this status of ``waitpid``; nothing if it is another one than the command's."""
        if self._running is None or self._running.pid != pid:
            return
        code = self._running.returncode = os.waitstatus_to_exitcode(status)
        self._running = self._kill_at = None
        if code == 0 and not self.notice:
            self._found(f"the preemption command said so: {shlex.join(self._command)}")

    def _started(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return self._start(command, self._environ, self._cwd, output=subprocess.DEVNULL)

    def _run(self, now: float) -> None:
        try:
            self._running = start_as_a_shell_does(self._command, self._started)
        except OSError as error:
            self._note(f"cannot be run: {error.strerror or error}")
            return
        self._kill_at = now + self._limits.preemption_command

    def _note(self, what: str) -> None:
        """Once: it may come again every few seconds."""
        if not self._troubled:
            _LOG.warning("agent: the preemption command %s %s", shlex.join(self._command), what)
        self._troubled = True

    def _found(self, why: str) -> None:
        self.notice, self._next = why, None
