"""The output of children that are not ours to write: shown in whole lines, however it arrives."""

from __future__ import annotations

import subprocess

from tfcollective.agent.output import Console, OutputPump
from tfcollective.timing import TIMING

__all__ = ["WholeLines"]

_CONSOLES = (Console(1), Console(2))  # shared: a line of one child does not begin in the middle of another's
_DRAIN_S = 0.25


class WholeLines:
    """Shows what a child prints. ssh, for one, passes on what comes in pieces of any length, which several of them
    would splice."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """``process`` has pipes as its stdout and stderr."""
        streams = zip((process.stdout, process.stderr), _CONSOLES, strict=True)
        self._pumps = [OutputPump(stream, console, b"") for stream, console in streams if stream is not None]

    def start(self) -> WholeLines:
        """Starts the threads; they end with the streams."""
        for pump in self._pumps:
            pump.start()
        return self

    def finish(self) -> None:
        """After the end of the child: waits a moment for what is still on its way. Another process may hold the other
        end, such as a connection that ssh keeps for later."""
        for pump in self._pumps:
            pump.catch_up(_DRAIN_S, TIMING.late_drain)
