"""The agent's process, from its settings to its last message.

It enrols with the coordinator, waits for its orders, runs the processes of its node, reports what becomes of them and
says again and again that it lives. Orders come line by line: over stdin from a launcher that has started it, else
from the coordinator. The end of stdin, and a coordinator that does not answer any longer, mean that the launcher is
gone: then the processes are ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tfcollective._base import log
from tfcollective._base.clock import SYSTEM_CLOCK, Deadline
from tfcollective._base.codec import decode, to_document
from tfcollective._base.errors import ConfigError, CoordinatorError, TfCollectiveError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.machine.network import held_ports
from tfcollective._base.private_directory import write_private
from tfcollective._base.processes import PASSED_ON, become_subreaper, end_descendants
from tfcollective._base.settings import Settings, environ_snapshot, variable, without_outer_job
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._control.client.channel import Channel, Retry
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._control.client.relay import BeatRelay
from tfcollective._control.identity import current_node_id
from tfcollective._control.messages import Alive
from tfcollective._control.records import JobDirectory
from tfcollective._control.store_keys import end_key, node_name
from tfcollective._launch.agent.node import enroll, node_client, own_address, placed, placed_later
from tfcollective._launch.agent.orders import COORDINATOR_LOST, STOP_SIGNALS, Interrupts, Orders, follow_orders
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import (
    AgentConfig,
    DumpCommand,
    End,
    FinishCommand,
    FirstOrder,
    LeaveCommand,
    NodeSettings,
    Order,
    PrepareCommand,
    SignalCommand,
    StartCommand,
    StopCommand,
    WorkerPlan,
)
from tfcollective._launch.agent.reporter import Reporter
from tfcollective._launch.agent.supervisor import Supervisor

_LOG = log.get_logger(__name__)
_STANDBY_S = 5.0  # each try is one more node to the coordinator
_GONE = "lost its launcher and ended its ranks"

_Follow = Callable[[CoordinatorClient, int], None]


def main(stdin: int = 0) -> int:
    """Runs the agent that a launcher starts; settings and orders come over stdin. Returns the exit code."""
    orders = Orders(stdin)
    while (line := orders.next()) is None and not orders.ended:
        orders.fill()
    if line is None:
        return ExitCode.LOST  # the launcher has died before it could say anything
    try:
        return _serve(decode(line, NodeSettings, "the node's settings"), orders, None, None).exit_code
    except _LauncherGoneError:
        return ExitCode.LOST  # no process is left that could read more of it
    except TfCollectiveError as error:
        log.say(str(error))
        return ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.INTERNAL


def serve(settings: NodeSettings, key_file: Path | None = None, *, rejoins: bool = True) -> int:
    """The same for an agent that a person or a platform has started: orders come from the coordinator.

    When the job fails and is started again, the agent joins it again if it ``rejoins``, as long as the launcher comes
    back soon. ``key_file`` holds the key, see :func:`~tfcollective._launch.agent.node.enroll`. Raises
    TfCollectiveError when it cannot take part.
    """
    failed = False
    deadline = Deadline.after(settings.timeout)
    while True:
        try:
            part = _served(settings, key_file, deadline)
        except _NotNowError as error:
            if deadline.expired():
                raise
            _LOG.info("agent: %s", error)
            time.sleep(_STANDBY_S)
            continue
        except CoordinatorError as error:
            if not failed:
                raise
            if isinstance(error, _LauncherGoneError) and not deadline.expired():  # the last start's, as it ended
                time.sleep(TIMING.retry)
                continue
            _LOG.warning("agent: the job was not started again: %s", error)
            return ExitCode.LOST
        if not (rejoins and part.again):
            return part.exit_code
        failed, deadline = True, Deadline.after(min(settings.timeout, TIMING.rejoin))
        _LOG.warning("agent: the job failed; waiting for its next start, at most %.0f s", deadline.remaining())
        time.sleep(TIMING.next_start)  # until the coordinator of the failed start has ended, which nobody reports


@dataclass(frozen=True)
class _Part:
    """The end of this node's part of one start of the job.

    Attributes:
        end: as the launcher hears it.
        lost: whether the launcher is gone: the agent may be started again.
        left: whether the node was preempted, and the job continues without it.
        again: whether the job has failed, and is started again.
    """

    end: End
    lost: bool = False
    left: bool = False
    again: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code for a platform or a person. A container that SIGTERM ends reports that: with exit code 0 it
        would pass for complete, and would not be replaced."""
        if self.lost:
            return ExitCode.LOST
        if self.left and self.end.signal is None and os.getpid() == 1:
            return SIGNAL_BASE + signal.SIGTERM
        return self.end.exit_code


def _served(settings: NodeSettings, key_file: Path | None, until: Deadline) -> _Part:
    """Serves one start of the job, which the launcher begins before the deadline."""
    reader, writer = socket.socketpair()

    def follow(client: CoordinatorClient, number: int) -> None:
        threading.Thread(target=follow_orders, args=(client, number, writer), name="tfc-orders", daemon=True).start()

    with reader, writer:
        return _serve(settings, Orders(reader.fileno()), follow, key_file, until)


class _LauncherGoneError(CoordinatorError):
    """The launcher has ended before it has given orders."""


class _NotNowError(CoordinatorError):
    """The job has its agents, but may need others when it is started again."""


class _Stopped(Exception):  # noqa: N818  not an error
    """A signal asked this agent to end before it had started anything."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.end = End(None, signal.Signals(number).name)


def _serve(
    settings: NodeSettings,
    orders: Orders,
    follow: _Follow | None,
    key_file: Path | None,
    until: Deadline | None = None,
) -> _Part:
    limit = settings.timeout
    with Interrupts() as interrupts, held_ports(settings.ports) as ports:
        try:
            address = own_address(settings)
            settings = replace(settings, timeout=limit if until is None else until.remaining())
            pause = partial(_wait, orders, interrupts)
            settings, number = enroll(settings, address, ports, key_file, pause)
        except _Stopped as stopped:
            return _Part(stopped.end)
        if follow is not None:
            follow(node_client(settings), number)
        with node_client(settings) as client:
            relay = BeatRelay(lambda beats: client.call(Alive(node_name(number), beats)))
            heartbeat = _heartbeat(relay, interrupts)
            try:
                config = _accepted(_first_order(orders, interrupts, limit))
                heartbeat.limit = config.lost_after
                heartbeat.interval = TIMING.beat_within(config.host_timeout)
                part = _run(placed(config, settings, address), settings, address, number, orders, interrupts, relay)
            except _Stopped as stopped:
                part = _Part(stopped.end)
            except Exception as error:
                _tell(client, number, End(str(error) or repr(error)))  # else the launcher only notices the silence
                raise
            finally:
                heartbeat.stop()
            _tell(client, number, part.end)
            return part


def _heartbeat(relay: BeatRelay, interrupts: Interrupts) -> Heartbeat:
    """Starts the heartbeat. Until the first order, the coordinator may be silent for as long as ranks allow."""

    def lost(cause: str) -> None:
        _LOG.error("agent: %s: ending the ranks", cause)
        interrupts.coordinator_lost()

    made = Heartbeat(relay, lost, TIMING.coordinator_lost, TIMING.node_heartbeat)
    made.start()
    return made


def _tell(client: CoordinatorClient, number: int, end: End) -> None:
    """Sends the last message. One try is enough for a launcher that is gone; another one may have been stopped."""
    retry = Retry(seconds=0.0, tries=1) if end.failure == _GONE else Retry()
    try:
        Channel(client, retry).call(lambda client: client.put(end_key(number), to_document(end)))
    except CoordinatorError as error:
        _LOG.info("agent: %s", error)


def _wait(orders: Orders, interrupts: Interrupts, seconds: float) -> None:
    """Waits up to ``seconds`` for an order. Raises _Stopped and _LauncherGoneError."""
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        selector.register(interrupts, selectors.EVENT_READ)
        ready = {key.fileobj for key, _ in selector.select(seconds)}
    for number in interrupts.read():
        if number in STOP_SIGNALS:
            raise _Stopped(number)
        if number == COORDINATOR_LOST:
            raise _LauncherGoneError("the launcher is gone")
    if orders in ready:
        orders.fill()
    if orders.ended:
        raise _LauncherGoneError("the launcher is gone")


def _first_order(orders: Orders, interrupts: Interrupts, timeout: float) -> bytes:
    deadline = Deadline.after(timeout)
    while (line := orders.next()) is None:
        if deadline.expired():
            raise CoordinatorError(f"the launcher has given no orders within {timeout:g} s")
        _wait(orders, interrupts, deadline.remaining())
    return line


def _accepted(order: bytes) -> AgentConfig:
    """Returns the configuration in the first order. Raises ConfigError on refusal, _NotNowError if only for now."""
    first = decode(order, FirstOrder, "the first order")
    if first.refused is not None:
        raise _NotNowError(first.refused) if first.again else ConfigError(first.refused)
    return decode(order, AgentConfig, "the agent's configuration")


def _run(
    config: AgentConfig,
    settings: NodeSettings,
    address: str,
    number: int,
    orders: Orders,
    interrupts: Interrupts,
    relay: BeatRelay,
) -> _Part:
    """Runs the processes to their end."""
    log.configure(config.log_level)
    become_subreaper()
    with _scratch_directory(config, number) as scratch:
        place = partial(placed_later, config=config, address=address)
        config = replace(config, scratch_dir=scratch)
        beats = Path(scratch) / f"beats-{number}"  # another agent may have the same directory
        relay.serve(beats, [str(worker.task) for worker in config.workers])
        reporter = Reporter(CoordinatorClient.to(settings.coordinator, bytes.fromhex(settings.key), config.job_id))
        environ = {**_worker_environ(config, settings), variable("beat_dir"): str(beats)}
        supervisor = Supervisor(config, environ, current_node_id(), reporter)
        supervisor.start()
        reporter.start()
        end = Supervision(supervisor, orders, interrupts, relay.add, place).run()
        end_descendants()
        supervisor.drain(TIMING.drain)
        reporter.close(TIMING.report if end.failure == _GONE else config.lost_after)
    again = config.rules.restarts > 0 and end.signal is None and supervisor.failed
    return _Part(end, lost=end.failure == _GONE, left=supervisor.leaving, again=again)


@contextlib.contextmanager
def _scratch_directory(config: AgentConfig, number: int) -> Iterator[str]:
    """The private directory that the launcher has named, or one of this node's own."""
    if config.scratch_dir:
        yield config.scratch_dir
        return
    with JobDirectory.create(Settings.load().jobs_directory(), f"{config.job_id}-node-{number}") as directory:
        yield str(directory.path)


def _worker_environ(config: AgentConfig, settings: NodeSettings) -> dict[str, str]:
    """Returns our environment without an outer job's identity, with the variables that all workers here share."""
    key_file = Path(config.scratch_dir) / "key"
    try:
        write_private(key_file, settings.key.encode())  # another agent may have the same directory
    except OSError as error:
        raise ConfigError(f"the agent cannot keep the job key where the ranks find it: {error}") from error
    environ = without_outer_job(environ_snapshot())
    environ[variable("coordinator")] = settings.coordinator
    environ[variable("key_file")] = str(key_file)
    environ[variable("job_id")] = config.job_id
    return environ


class Supervision:
    """The loop of an agent's main thread while its processes run: children, orders, signals, the loss of the launcher.

    Args:
        supervisor: supervises the processes, which have been started.
        orders: the launcher's.
        interrupts: signals, and the loss of the coordinator.
        serve: called with each task that is started later, before it is.
        place: adds to a process that is started later what only this node knows.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        orders: Orders,
        interrupts: Interrupts,
        serve: Callable[[TaskKey], None] = lambda task: None,
        place: Callable[[StartCommand], WorkerPlan] = lambda command: command.worker,
    ) -> None:
        self._serve = serve
        self._place = place
        self._supervisor = supervisor
        self._orders = orders
        self._interrupts = interrupts
        self._asked = False
        self._launcher_gone = False
        self._stopped_by: str | None = None

    def run(self) -> End:
        """Runs until all processes have ended; returns how."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._orders, selectors.EVENT_READ, self._obey)
            selector.register(self._interrupts, selectors.EVENT_READ, self._react)
            self._carry_out()  # what came together with the configuration
            self._supervisor.reap()
            while not self._supervisor.done:
                at = self._supervisor.wake_at
                timeout = None if at is None else max(0.0, at - SYSTEM_CLOCK.monotonic())
                for key, _ in selector.select(timeout):
                    act: Callable[[], None] = key.data
                    act()
                if self._orders.ended and self._orders in selector.get_map():
                    selector.unregister(self._orders)
                self._supervisor.tick()
        return End(_GONE if self._launcher_gone else None, self._stopped_by)

    def _obey(self) -> None:
        self._orders.fill()
        self._carry_out()
        if self._orders.ended:
            self._abandon()

    def _carry_out(self) -> None:
        while (line := self._orders.next()) is not None:
            try:
                command = decode(line, Order, "the order").command
            except ConfigError as error:
                _LOG.warning("agent: %s", error)
                continue
            if isinstance(command, StopCommand) and command.cause is StopCause.ABANDONED:
                self._abandon()
            elif isinstance(command, StopCommand):
                self._asked = True
                self._supervisor.stop(command.cause, command.signal)
            elif isinstance(command, SignalCommand):
                self._supervisor.pass_on(command.signal)
            elif isinstance(command, StartCommand):
                self._start(command)
            elif isinstance(command, LeaveCommand):
                self._supervisor.ask_to_leave(command.task, command.why, command.change)
            elif isinstance(command, PrepareCommand):
                self._prepare(command)
            elif isinstance(command, FinishCommand):
                self._supervisor.finish()
            elif isinstance(command, DumpCommand):
                self._supervisor.dump(command)
            else:
                self._supervisor.kill(command)

    def _start(self, command: StartCommand) -> None:
        try:
            worker = self._place(command)
        except ConfigError as error:
            self._supervisor.cannot_start(command.worker, str(error))
            return
        self._serve(worker.task)
        self._supervisor.start_later(worker)

    def _prepare(self, command: PrepareCommand) -> None:
        with contextlib.suppress(ConfigError):  # a process that is started here is reported
            worker = self._place(StartCommand(command.worker, command.slots))
            self._supervisor.prepare(worker, command.modules)

    def _react(self) -> None:
        for number in self._interrupts.read():
            if number == signal.SIGTERM and self._supervisor.rules.elastic and not self._asked:
                # The job continues without this node: it is the notice that the node is preempted. The launcher ends
                # the job by an order.
                self._supervisor.leave("its agent got SIGTERM")
            elif number in STOP_SIGNALS:
                if not self._asked and self._stopped_by is None:
                    self._stopped_by = signal.Signals(number).name
                self._supervisor.stop(StopCause.REQUEST, number)
            elif number in PASSED_ON:
                self._supervisor.pass_on(number)
            elif number == COORDINATOR_LOST:
                self._abandon()
        self._supervisor.reap()

    def _abandon(self) -> None:
        self._asked = self._launcher_gone = True
        self._supervisor.stop(StopCause.ABANDONED)
