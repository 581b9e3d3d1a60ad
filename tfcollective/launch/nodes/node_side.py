"""A node's part of a job whose launcher runs elsewhere: what ``tfcollective agent --join`` does.

It enrolls with the coordinator, waits for its orders, runs an agent, and keeps telling the coordinator that it lives.
Orders come line by line: over stdin from a launcher that has started it, else from the coordinator. The end of stdin,
and a coordinator that does not answer any more, mean that the launcher is gone: then the ranks are ended.
"""

from __future__ import annotations

import os
import platform
import queue
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfcollective import log
from tfcollective._version import __version__
from tfcollective.agent.config import AgentConfig, Order, StopCommand, WorkerConfig
from tfcollective.agent.policy import StopCause
from tfcollective.clock import Deadline
from tfcollective.codec import decode, to_document
from tfcollective.control.client import CoordinatorClient, CoordinatorUnreachableError, UnprovenReplyError
from tfcollective.control.records import JobDirectory
from tfcollective.errors import ConfigError, CoordinatorError
from tfcollective.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective.identity.addresses import route_address
from tfcollective.identity.keys import read_key
from tfcollective.launch.nodes.protocol import Facts, FirstOrder, NodeSettings, beat_key, orders_key
from tfcollective.launch.plan.gpus import gpu_variables
from tfcollective.launch.plan.horovod_compat import PACKAGES
from tfcollective.launch.plan.horovod_engine import with_interface
from tfcollective.launch.plan.planner import thread_variables
from tfcollective.launch.running.agent_process import AgentProcess
from tfcollective.launch.system.cores import available_cores
from tfcollective.launch.system.gpus import visible_gpus
from tfcollective.launch.system.network import choose_address, interface_addresses
from tfcollective.launch.system.ports import free_ports
from tfcollective.launch.system.signals import forward_signals
from tfcollective.launch.system.sweep import end_processes_of
from tfcollective.private_directory import runtime_directory
from tfcollective.settings import Settings, environ_snapshot, variable
from tfcollective.tasks import NO_RANK
from tfcollective.timing import TIMING
from tfcollective.topology import Endpoint

__all__ = ["serve", "serve_stdin", "wait_for_key"]

_LOG = log.get_logger(__name__)
_STDIN = 0
_READ_BYTES = 1 << 16
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GONE = "lost its launcher and ended its ranks"

_Orders = queue.SimpleQueue["bytes | None"]


@dataclass(frozen=True)
class _End:
    """How the agent of this node ended: what went wrong, or None, and the signal with which somebody else than the
    launcher has asked for it, or None."""

    failure: str | None
    signal: str | None = None

    @property
    def exit_code(self) -> int:
        """What a platform, or a person, sees of it."""
        if self.signal is not None:
            return SIGNAL_BASE + signal.Signals[self.signal]
        return ExitCode.OK if self.failure is None else ExitCode.INTERNAL


def wait_for_key(path: Path, patience: float) -> bytes:
    """The job key, as soon as the launcher has put it there. Raises ConfigError when it cannot be used."""
    deadline = Deadline.after(patience)
    while not path.exists() and not deadline.expired():
        time.sleep(TIMING.retry)  # a file system of another host gives no notice of new files
    key = read_key(Settings(key_file=str(path)))
    assert key is not None
    return key


def serve_stdin() -> int:
    """As a launcher's child, over ssh or not: settings and orders come over stdin. Returns the exit code."""
    orders: _Orders = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(_STDIN, orders), daemon=True).start()
    first = orders.get()
    if first is None:
        return ExitCode.LOST  # the launcher has died before it could say anything
    settings = decode(first, NodeSettings, "the node's settings")
    return _serve(settings, orders, lambda settings, number, client: None, None)


def serve(settings: NodeSettings, key_file: Path | None = None) -> int:
    """Started by anybody: orders come from the coordinator. Returns the exit code.

    ``key_file`` is where the key comes from: it is read again when the coordinator has another one, because the file
    may be what a launcher has left that was killed, and the next launcher puts its own there.
    """
    orders: _Orders = queue.SimpleQueue()

    def listen(settings: NodeSettings, number: int, client: CoordinatorClient) -> None:
        threading.Thread(target=_poll_orders, args=(settings, number, orders, client), daemon=True).start()

    return _serve(settings, orders, listen, key_file)


def _serve(
    settings: NodeSettings,
    orders: _Orders,
    listen: Callable[[NodeSettings, int, CoordinatorClient], None],
    key_file: Path | None,
) -> int:
    address = _address(settings)
    settings, number = _enroll(settings, address, key_file)
    with _client(settings) as client:
        listen(settings, number, client)
        pulse = _Pulse(client, number, lambda: orders.put(None))
        pulse.start()
        try:
            return _follow(settings, orders, pulse, address, number)
        finally:
            pulse.stop()


def _follow(settings: NodeSettings, orders: _Orders, pulse: _Pulse, address: str, number: int) -> int:
    try:
        first = orders.get(timeout=settings.patience)
    except queue.Empty:
        raise CoordinatorError(f"the launcher has given no orders within {settings.patience:g} s") from None
    if first is None:
        raise CoordinatorError("the launcher is gone")
    try:
        config = _accepted(first)
        pulse.limit = config.lost_after or TIMING.host_timeout
        end = _run(config, settings, address, number, orders)
    except Exception as error:
        pulse.end(_End(str(error) or repr(error)))  # else the launcher learns of our silence only, not of its reason
        raise
    pulse.end(end)
    return end.exit_code


def _client(settings: NodeSettings) -> CoordinatorClient:
    return CoordinatorClient(
        Endpoint.parse(settings.coordinator),
        bytes.fromhex(settings.key),
        encryption=Settings.load().encryption,
        reply_timeout=TIMING.short_reply,
    )


def _accepted(order: bytes) -> AgentConfig:
    """What the first order asks for; ConfigError when it is to go away."""
    refused = decode(order, FirstOrder, "the first order").refused
    if refused is not None:
        raise ConfigError(refused)
    return decode(order, AgentConfig, "the agent's configuration")


def _run(config: AgentConfig, settings: NodeSettings, address: str, number: int, orders: _Orders) -> _End:
    """Runs an agent to its end."""
    log.configure(config.log_level)
    environ = environ_snapshot()
    parent = runtime_directory(Settings.load(environ).runtime_dir, environ, tempfile.gettempdir())
    with JobDirectory.create(parent, f"{config.job_id}-node-{number}") as directory:
        agent = AgentProcess.start(
            replace(
                config,
                coordinator=settings.coordinator,
                key=settings.key,
                scratch_dir=str(directory.path),
                lost_after=(config.lost_after or TIMING.host_timeout) + TIMING.agent_later,
                workers=tuple(_placed(worker, config, address, settings.mpi) for worker in config.workers),
            )
        )
        relay = _Relay(orders, agent)
        relay.start()
        with forward_signals(_STOP_SIGNALS, relay.stop):
            failure = agent.wait()
        if failure is not None:
            end_processes_of(config.job_id)
        why = _GONE if relay.launcher_gone else None if failure is None else failure.message
        return _End(why, relay.stopped_by)


def _placed(worker: WorkerConfig, config: AgentConfig, address: str, mpi: tuple[int, int, int] | None) -> WorkerConfig:
    """The process with what only its node knows; ``mpi`` as in :class:`NodeSettings`."""
    ranks = sorted(one.rank for one in config.workers if one.rank != NO_RANK)
    slots = len(ranks) if mpi is None else mpi[2]
    share = max(1, available_cores() // max(1, slots))
    environ = {**environ_snapshot(), **worker.env}
    env = {**thread_variables(share, environ), variable("bind_host"): address, **worker.env}
    if worker.rank in ranks:
        slot = ranks.index(worker.rank) if mpi is None else mpi[1]
        env.update(gpu_variables(slot, slots, environ, visible_gpus(environ)))
    return replace(worker, env=with_interface(env, address, interface_addresses()))


def _address(settings: NodeSettings) -> str:
    if settings.network_interfaces:
        return choose_address(interface_addresses(), settings.network_interfaces)
    found = route_address(Endpoint.parse(settings.coordinator).host)
    if found is None:
        raise CoordinatorError(f"nothing leads from here to the coordinator at {settings.coordinator}")
    return found


def _enroll(settings: NodeSettings, address: str, key_file: Path | None) -> tuple[NodeSettings, int]:
    """Says what this node is like, until the coordinator hears it; returns the node's number, and the settings with
    the key that the coordinator has."""
    facts = Facts(
        name=settings.name,
        host=socket.gethostname(),
        address=address,
        version=__version__,
        python=platform.python_version(),
        executable=settings.executable or sys.executable,
        packages=str(PACKAGES),
        slots=settings.slots,
        ports=tuple(free_ports(address, settings.ports)),
        rank=None if settings.mpi is None else settings.mpi[0],
    )
    token = secrets.token_hex(16)
    deadline = Deadline.after(settings.patience)
    warned = False
    while True:
        try:
            with _client(settings) as client:
                return settings, client.enroll(token, to_document(facts))
        except CoordinatorUnreachableError:
            if deadline.expired():
                raise
        except UnprovenReplyError as error:
            if key_file is None or deadline.expired():
                raise
            if not warned:
                _LOG.warning("%s Waiting for another key in %s", error, key_file)
            warned = True
        time.sleep(TIMING.retry)  # a coordinator that does not listen yet gives no notice, nor does a file
        settings = replace(settings, key=_newest_key(key_file, settings.key))


def _newest_key(key_file: Path | None, known: str) -> str:
    if key_file is not None:
        with suppress(ConfigError):  # gone with its launcher, until the next one comes
            key = read_key(Settings(key_file=str(key_file)))
            return known if key is None else key.hex()
    return known


class _Pulse:
    """Tells the coordinator again and again that this node lives, and finds out when nobody hears it any more."""

    def __init__(self, client: CoordinatorClient, number: int, on_lost: Callable[[], None]) -> None:
        self._client = client
        self._key = beat_key(number)
        self._on_lost = on_lost
        self.limit = TIMING.host_timeout
        """How long (s) the coordinator may be silent; the first order says it."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the thread; ``on_lost`` is called on it, once."""
        self._thread.start()

    def stop(self) -> None:
        """No sign of life after this one. A second call does nothing."""
        self._ended.set()
        self._thread.join(TIMING.short_reply)

    def end(self, end: _End) -> None:
        """The last word: how the agent ended."""
        self.stop()
        try:
            self._client.put(self._key, {"ended": True, **asdict(end)})
        except CoordinatorError as error:
            _LOG.info("node: %s", error)

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._ended.wait(TIMING.node_heartbeat):
            try:
                self._client.put(self._key, {"ended": False, "failure": None})
                heard = time.monotonic()
            except CoordinatorError as error:
                _LOG.info("node: %s", error)
                if time.monotonic() - heard >= self.limit:
                    _LOG.error("%s has not answered for %.0f s: ending the ranks", error, time.monotonic() - heard)
                    self._on_lost()
                    return


class _Relay:
    """Hands the launcher's orders to the agent, on a thread of its own, and anybody's signals."""

    def __init__(self, orders: _Orders, agent: AgentProcess) -> None:
        self._orders = orders
        self._agent = agent
        self._told_to_stop = False
        self.launcher_gone = False
        self.stopped_by: str | None = None
        """The signal that came before the launcher had asked for the end."""

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self, number: int) -> None:
        """A signal to this process; on the main thread."""
        if not self._told_to_stop and self.stopped_by is None:
            self.stopped_by = signal.Signals(number).name
        self._agent.request_stop(number)

    def _run(self) -> None:
        while (line := self._orders.get()) is not None:
            try:
                command = decode(line, Order, "the order").command
            except ConfigError as error:
                _LOG.warning("node: %s", error)
                continue
            if isinstance(command, StopCommand):
                self._told_to_stop = True
                self._agent.stop(command)
            else:
                self._agent.send(command)
        self._told_to_stop = self.launcher_gone = True
        self._agent.stop(StopCommand(signal.SIGTERM, StopCause.ABANDONED))


def _read_lines(descriptor: int, orders: _Orders) -> None:
    rest = b""
    while data := os.read(descriptor, _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            orders.put(line)
    orders.put(None)


def _poll_orders(settings: NodeSettings, number: int, orders: _Orders, pulse: CoordinatorClient) -> None:
    """A connection of its own: it waits long. Ends when the pulse's has been closed."""
    version, seen = 0, 0
    with _client(settings) as client:
        while not pulse.closed:
            try:
                entry = client.wait(orders_key(number), timeout=TIMING.poll, newer_than=version)
            except CoordinatorError as error:
                _LOG.debug("node: %s", error)
                time.sleep(TIMING.retry)  # the pulse decides when this has lasted too long
                continue
            if entry is not None and isinstance(entry.value, list):
                for line in entry.value[seen:]:
                    orders.put(str(line).encode())
                version, seen = entry.version, len(entry.value)
