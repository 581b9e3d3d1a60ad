"""An agent on this machine, as the launcher holds it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from tfcollective.agent.config import AgentConfig, Command, StopCommand, command_to_line
from tfcollective.errors import LaunchError

__all__ = ["AgentProcess"]

# An agent that was asked to stop needs 13 s at worst: its processes, their children, output and reports.
_STOP_LIMIT_S = 20.0
_STOP_AGAIN_LIMIT_S = 5.0


def _start_program() -> str:
    """Runs the agent with the modules that we have ourselves. ``python -m`` would look into the directory where the
    user happens to be first, where a script may be called like a module that the agent needs."""
    return f"import sys; sys.path[:] = {sys.path!r}; from tfcollective.agent.main import main; sys.exit(main())"


class AgentProcess:
    """A child that runs :mod:`tfcollective.agent`; its stdin stays open as long as this process lives."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._limits: list[threading.Timer] = []

    @classmethod
    def start(cls, config: AgentConfig, inside: Sequence[str] = ()) -> AgentProcess:
        """Starts it in a session of its own (a Ctrl-C at the terminal is for us to pass on) and configures it.

        ``inside`` is a command that runs another in some surroundings, such as a namespace, and becomes it: the pid
        stays.
        """
        try:
            command = [*inside, sys.executable, "-c", _start_program(), "tfcollective.agent"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        except OSError as error:
            raise LaunchError(f"cannot start the agent: {error}") from error
        agent = cls(process)
        agent._write(config.to_line())
        return agent

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Tells it what to do. May be called from a signal handler and from any thread."""
        self._write(command_to_line(command))

    def stop(self, number: int) -> None:
        """Asks it to end its processes, with this signal first; for signal handlers. An agent that is still there a
        while later cannot act (it may be stopped itself): it is killed."""
        self.send(StopCommand(number))
        limit = threading.Timer(_STOP_AGAIN_LIMIT_S if self._limits else _STOP_LIMIT_S, self._process.kill)
        limit.daemon = True
        self._limits.append(limit)
        limit.start()

    def wait(self) -> str | None:
        """Blocks until it has ended; what happened when it did not end its work in order, else None."""
        code = self._process.wait()
        for limit in self._limits:
            limit.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if code == 0:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the agent (pid {self._process.pid}) {how}; its processes have been ended"

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # One bare write for a command: a handler may run in the middle of anything. An agent that is gone needs no
        # telling, nor does one for which wait() has seen the end (ValueError).
        with contextlib.suppress(BrokenPipeError, ValueError):
            while line:
                line = line[os.write(self._process.stdin.fileno(), line) :]
