"""An agent on this machine, as the launcher holds it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence

from tfcollective.agent.config import AgentConfig, Command, Order, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.codec import encode_line
from tfcollective.descriptors import give_usual_limit
from tfcollective.errors import LaunchError
from tfcollective.exit_codes import signal_name
from tfcollective.launch.running.agents import AgentFailure
from tfcollective.launch.running.line_writer import LineWriter
from tfcollective.timing import TIMING

__all__ = ["AgentProcess", "stop_limit"]

_LOOK_S = 1.0
_READ_BYTES = 1 << 12


def stop_limit(command: StopCommand, grace: float) -> float:
    """How long (s) an agent may take to end after this order, before it is killed itself."""
    return TIMING.stop_limit + (grace if command.cause is StopCause.REQUEST else 0.0)


def _start_program() -> str:
    """Runs the agent with the modules that we have ourselves. ``python -m`` would look into the directory where the
    user happens to be first, where a script may be called like a module that the agent needs."""
    return f"import sys; sys.path[:] = {sys.path!r}; from tfcollective.agent.main import main; sys.exit(main())"


class AgentProcess:
    """A child that runs :mod:`tfcollective.agent`; its stdin stays open as long as this process lives.

    Args:
        process: the child.
        channel: the other end of the socket that is its stdin: orders go there, signs of life come back.
        grace: as in its configuration.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, grace: float = TIMING.grace) -> None:
        self._process = process
        self._grace = grace
        self._channel = channel
        self._orders = LineWriter(os.dup(channel.fileno())).start()
        self._limits: list[threading.Timer] = []
        # A launcher that fails before it waits lets go of the agent, too, which ends at the end of its stdin.
        weakref.finalize(self, self._orders.close)

    @classmethod
    def start(cls, config: AgentConfig, inside: Sequence[str] = ()) -> AgentProcess:
        """Starts it in a session of its own (a Ctrl-C at the terminal is for us to pass on) and configures it.

        ``inside`` is a command that runs another in some surroundings, such as a namespace, and becomes it: the pid
        stays.
        """
        ours, theirs = socket.socketpair()
        try:
            command = [*inside, sys.executable, "-c", _start_program(), "tfcollective.agent"]
            process = subprocess.Popen(command, stdin=theirs.fileno(), bufsize=0, start_new_session=True)
        except OSError as error:
            ours.close()
            raise LaunchError(f"cannot start the agent: {error}") from error
        finally:
            theirs.close()
        give_usual_limit(process.pid)  # before it knows of anything to start
        agent = cls(process, ours, config.grace)
        agent._orders.write(encode_line(config))
        return agent

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Tells it what to do. May be called from a signal handler and from any thread."""
        self._orders.write(encode_line(Order.of(command)))

    def request_stop(self, number: int) -> None:
        """A person or a platform asks for the end, with this signal; for signal handlers."""
        self.stop(StopCommand(number))

    def stop(self, command: StopCommand) -> None:
        """Asks it to end its processes; for signal handlers, too. An agent that is still there a while later cannot act
        (it may be stopped itself): it is killed. After a second Ctrl-C that is soon."""
        self.send(command)
        hurry = bool(self._limits) and command.cause is StopCause.REQUEST and command.signal == signal.SIGINT
        seconds = TIMING.stop_again if hurry else stop_limit(command, self._grace)
        limit = threading.Timer(seconds, self._process.kill)
        limit.daemon = True
        self._limits.append(limit)
        limit.start()

    def wait(self) -> AgentFailure | None:
        """Blocks until it has ended; what happened when it did not end its work in order, else None.

        One that gives no sign of life any more is killed.
        """
        try:
            silent = self._watch()
            if silent is not None:
                self._process.kill()
            code = self._process.wait()
        finally:
            for limit in self._limits:
                limit.cancel()
            self._orders.close()
            self._channel.close()
        if silent is not None:
            how = f"gave no sign of life for {silent:g} s (stopped?) and was killed"
        elif code == 0:
            return None
        else:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        message = f"the agent (pid {self._process.pid}) {how}; its processes have been ended"
        return AgentFailure(message, time.monotonic() - (silent or 0.0))

    def _watch(self) -> float | None:
        """Until it has ended (None), or has been silent for too long: for how long (s)."""
        looks, limit = 0, TIMING.agent_start
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while self._process.poll() is None:
            if not poll.poll(_LOOK_S * 1000):
                looks += 1  # not the clock: while we were stopped ourselves, it may have been, too
            elif self._hears():
                looks, limit = 0, TIMING.agent_silent
            else:
                return None  # it has closed its end
            if looks * _LOOK_S >= limit:
                return limit
        return None

    def _hears(self) -> bool:
        try:
            return bool(self._channel.recv(_READ_BYTES))
        except ConnectionError:  # it has ended with an order unread
            return False
