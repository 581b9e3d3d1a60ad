"""The process through which a host's agent was started, as the launcher holds it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from tfcollective.descriptors import give_usual_limit
from tfcollective.errors import LaunchError
from tfcollective.launch.running.line_writer import LineWriter
from tfcollective.launch.running.whole_lines import WholeLines

__all__ = ["NodeProcess"]

# After the end of its stdin an agent ends its ranks; that takes 3 s at worst.
_END_S = 5.0


class NodeProcess:
    """ssh, or on this machine the agent itself. What it prints is shown in whole lines; its stdin stays open as long as
    we live."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._process = process
        self._orders = LineWriter(os.dup(process.stdin.fileno())).start()
        process.stdin.close()
        self._output = WholeLines(process).start()

    @classmethod
    def start(cls, command: Sequence[str]) -> NodeProcess:
        """Starts it in a session of its own: a Ctrl-C at the terminal is for the launcher to pass on."""
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot run {command[0]}: {error}") from error
        give_usual_limit(process.pid)
        return cls(process)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def write(self, line: bytes) -> None:
        """Hands on a line; from any thread, and from signal handlers. One that is gone needs no telling."""
        self._orders.write(line)

    def close(self) -> None:
        """Lets go of it: the agent ends what it has started, and then itself."""
        self._orders.close()

    def kill(self) -> None:
        """For one that does not answer any more."""
        self._process.kill()

    def wait(self) -> None:
        """Until it has ended; it is killed when that takes too long."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.finish()
