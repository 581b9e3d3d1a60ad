"""The agent's process: reads its configuration, then reacts to its processes, launcher, coordinator and signals."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tfcollective import log
from tfcollective.agent.config import AgentConfig, Order, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.agent.pulse import Pulse
from tfcollective.agent.reporter import Reporter
from tfcollective.agent.supervisor import Supervisor
from tfcollective.clock import SYSTEM_CLOCK
from tfcollective.codec import decode
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.liveness import Heartbeat
from tfcollective.errors import ConfigError
from tfcollective.exit_codes import ExitCode
from tfcollective.identity import current_node_id
from tfcollective.processes import become_subreaper, end_descendants
from tfcollective.settings import TF_CONFIG, VARIABLES, Settings, environ_snapshot, variable
from tfcollective.timing import TIMING
from tfcollective.topology import Endpoint

__all__ = ["main"]

_LOG = log.get_logger(__name__)
_STDIN = 0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READ_BYTES = 1 << 16
_LOST = 0  # among the numbers of signals: the coordinator is gone


def main() -> int:
    """Runs the agent that stdin describes; returns 0 when all its processes have ended, whatever their results, and
    ``ExitCode.LOST`` when it has ended them because the coordinator was gone."""
    lines = _LineReader(_STDIN)
    first = lines.first()
    if lines.ended and not first:
        return ExitCode.LOST  # the launcher has died before it could say anything
    try:
        config = decode(first, AgentConfig, "the agent's configuration")
    except ConfigError as error:
        _LOG.error("agent: %s", error)
        return ExitCode.USAGE
    log.configure(config.log_level)
    become_subreaper()
    reporter = Reporter(_client(config))
    node = current_node_id(config.node_id)
    try:
        environ = _worker_environ(config, node)
    except OSError as error:
        _LOG.error("agent: cannot keep the job key where the ranks find it: %s", error)
        return ExitCode.INTERNAL
    supervisor = Supervisor(config, environ, node, reporter)
    with _WakeUp() as wake_up:
        Pulse(_STDIN).start()
        supervisor.start()
        reporter.start()
        _watch_coordinator(config, wake_up)
        _supervise(supervisor, lines, wake_up)
    end_descendants()
    supervisor.drain(TIMING.drain)
    reporter.close(TIMING.report)
    return ExitCode.LOST if wake_up.lost else 0


def _client(config: AgentConfig, **options: Any) -> CoordinatorClient:
    return CoordinatorClient(
        Endpoint.parse(config.coordinator),
        bytes.fromhex(config.key),
        config.job_id,
        encryption=Settings.load().encryption,
        **options,
    )


def _watch_coordinator(config: AgentConfig, wake_up: _WakeUp) -> None:
    """Where the launcher's end is not the end of our stdin: whoever holds that may have been stopped."""
    if config.lost_after is None:
        return
    client = _client(config, reply_timeout=TIMING.short_reply, connections=1)

    def lost(cause: str) -> None:
        _LOG.error("agent: %s: ending the ranks", cause)
        wake_up.coordinator_lost()

    Heartbeat(client.ping, lost, config.lost_after).start()


def _worker_environ(config: AgentConfig, node: str) -> dict[str, str]:
    """Our environment, without an outer job's identity, with what all workers of this node share."""
    key_file = Path(config.scratch_dir) / "key"
    with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(config.key)
    environ = environ_snapshot()
    for row in VARIABLES:
        if row.identity:  # what a launcher of an outer job has left there
            environ.pop(row.name, None)
    environ.pop(TF_CONFIG, None)  # what it says of another job
    environ[variable("coordinator")] = config.coordinator
    environ[variable("key_file")] = str(key_file)
    environ[variable("job_id")] = config.job_id
    if config.node_id is not None:
        environ[variable("node_id")] = node
    return environ


def _supervise(supervisor: Supervisor, lines: _LineReader, wake_up: _WakeUp) -> None:
    """Until all processes have ended: waits for a child, a command, the end of the launcher, or the next signal."""
    with selectors.DefaultSelector() as selector:
        selector.register(_STDIN, selectors.EVENT_READ, lambda: _obey(supervisor, lines, selector))
        selector.register(wake_up.fileno(), selectors.EVENT_READ, lambda: _react(supervisor, wake_up))
        _carry_out(supervisor, lines.complete())  # what came together with the configuration
        supervisor.reap()
        while not supervisor.done:
            at = supervisor.wake_at
            timeout = None if at is None else max(0.0, at - SYSTEM_CLOCK.monotonic())
            for key, _ in selector.select(timeout):
                act: Callable[[], None] = key.data
                act()
            supervisor.tick()


def _obey(supervisor: Supervisor, lines: _LineReader, selector: selectors.BaseSelector) -> None:
    lines.fill()
    _carry_out(supervisor, lines.complete())
    if lines.ended:
        selector.unregister(_STDIN)
        supervisor.stop(StopCause.ABANDONED)


def _carry_out(supervisor: Supervisor, commands: Iterable[bytes]) -> None:
    for line in commands:
        try:
            command = decode(line, Order, "the order").command
        except ConfigError as error:
            _LOG.warning("agent: %s", error)
            continue
        if isinstance(command, StopCommand):
            supervisor.stop(command.cause, command.signal)
        else:
            supervisor.kill(command.task, command.reason)


def _react(supervisor: Supervisor, wake_up: _WakeUp) -> None:
    for number in wake_up.read():
        if number in _STOP_SIGNALS:
            supervisor.stop(StopCause.REQUEST, number)
        elif number == _LOST:
            supervisor.stop(StopCause.ABANDONED)
    supervisor.reap()


class _LineReader:
    """Lines from a descriptor, without a buffer that a selector would not know of."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self.ended = False

    def first(self) -> bytes:
        """Blocks for the first line; the launcher writes it at once."""
        while b"\n" not in self._rest and not self.ended:
            self.fill()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def complete(self) -> list[bytes]:
        """The lines that have come in full."""
        *lines, self._rest = self._rest.split(b"\n")
        return lines

    def fill(self) -> None:
        """Reads once; sets ``ended`` at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except ConnectionError:  # the launcher has died before it had read all of our signs of life
            data = b""
        self.ended = not data
        self._rest += data


class _WakeUp:
    """Signals as bytes on a descriptor: children that ended, requests to stop, and the loss of the coordinator."""

    def __init__(self) -> None:
        self.lost = False
        """Whether the coordinator is gone."""

    def __enter__(self) -> _WakeUp:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_STOP_SIGNALS):
            signal.signal(number, _ignore)
        return self

    def __exit__(self, *unused: object) -> None:
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def coordinator_lost(self) -> None:
        """From another thread."""
        self.lost = True
        with contextlib.suppress(OSError):  # the agent has ended meanwhile
            self._writer.send(bytes([_LOST]))

    def fileno(self) -> int:
        """What to wait on."""
        return self._reader.fileno()

    def read(self) -> bytes:
        """The numbers of the signals that came."""
        try:
            return self._reader.recv(_READ_BYTES)
        except BlockingIOError:
            return b""


def _ignore(number: int, frame: object) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for that."""
