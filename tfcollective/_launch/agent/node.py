"""The facts of a node, its enrolment with the coordinator, and the placement of its processes."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tfcollective._base import log
from tfcollective._base.addresses import route_address
from tfcollective._base.clock import poll
from tfcollective._base.codec import to_document
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.machine.cores import available_cores, thread_variables
from tfcollective._base.machine.gpus import gpu_variables, visible_gpus
from tfcollective._base.machine.network import choose_address, interface_addresses, with_interface
from tfcollective._base.settings import environ_snapshot, variable
from tfcollective._base.tasks import NO_RANK
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._base.version import __version__
from tfcollective._control.client.channel import Retry, persist
from tfcollective._control.client.client import CoordinatorClient, CoordinatorUnreachableError, UnprovenReplyError
from tfcollective._control.identity.keys import read_key_file
from tfcollective._control.messages import Enroll
from tfcollective._launch.agent.protocol import (
    PACKAGE,
    AgentConfig,
    NodeFacts,
    NodeSettings,
    StartCommand,
    WorkerPlan,
)

_LOG = log.get_logger(__name__)


def wait_for_key(path: Path, timeout: float) -> bytes:
    """The job key, as soon as the launcher has put it there. Raises ConfigError when it cannot be used."""
    if not path.exists():
        _LOG.warning("waiting for the key file %s, at most %g s", path, timeout)
    poll(lambda: path.exists() or None, timeout, TIMING.retry)
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    return read_key_file(str(path), f"the key file {path}")


def node_client(settings: NodeSettings) -> CoordinatorClient:
    """A client that learns soon that the coordinator does not answer."""
    return CoordinatorClient.to(settings.coordinator, bytes.fromhex(settings.key), reply_timeout=TIMING.short_reply)


def own_address(settings: NodeSettings) -> str:
    """Returns the address at which other ranks reach those of this node: on the chosen interface, else on the one with
    the route to the coordinator. Raises ConfigError or CoordinatorError if there is none."""
    if settings.network_interfaces:
        return choose_address(interface_addresses(), settings.network_interfaces)
    found = route_address(Endpoint.parse(settings.coordinator).host)
    if found is None:
        raise CoordinatorError(f"no route from {socket.gethostname()} to the coordinator {settings.coordinator}")
    return found


def enroll(
    settings: NodeSettings,
    address: str,
    ports: Sequence[int],
    key_file: Path | None,
    wait: Callable[[float], object],
) -> tuple[NodeSettings, int]:
    """Reports the facts of this node until the coordinator has them; returns the node's number, and the settings with
    the coordinator's key.

    Args:
        settings: the node's.
        address: its :func:`own_address`.
        ports: those that it holds.
        key_file: where the key comes from. It is read again when the coordinator has another one, because the file may
            be what a launcher has left that was killed, and the next launcher puts its own there.
        wait: waits so many seconds between two tries, or raises when to give up.
    """
    facts = NodeFacts(
        name=settings.name,
        host=socket.gethostname(),
        address=address,
        version=__version__,
        python=platform.python_version(),
        executable=settings.executable or sys.executable,
        package=str(PACKAGE),
        pid=os.getpid(),
        slots=settings.slots,
        instance=settings.instance,
        rank=None if settings.mpi is None else settings.mpi[0],
        ports=tuple(ports),
    )
    token = secrets.token_hex(16)
    warned = False

    def ask() -> int:
        nonlocal settings
        settings = replace(settings, key=_newest_key(key_file, settings.key))
        with node_client(settings) as client:
            return client.call(Enroll(token, to_document(facts))).number

    def note(error: CoordinatorError) -> None:
        nonlocal warned
        if isinstance(error, UnprovenReplyError) and not warned:
            _LOG.warning("%s Waiting for another key in %s", error, key_file)
            warned = True

    errors = (CoordinatorUnreachableError,) if key_file is None else (CoordinatorUnreachableError, UnprovenReplyError)
    number = persist(ask, Retry(settings.timeout, tries=1, errors=errors, note=note, wait=wait))
    return settings, number


def _newest_key(key_file: Path | None, known: str) -> str:
    if key_file is not None:
        with suppress(ConfigError):  # gone with its launcher, until the next one comes
            return _read_key(key_file).hex()
    return known


def placed(config: AgentConfig, settings: NodeSettings, address: str) -> AgentConfig:
    """Returns the processes with what only their node knows: threads, GPUs, the address to listen on."""
    if config.here:
        return config
    ranks = sorted(one.rank for one in config.workers if one.rank != NO_RANK)

    def place(worker: WorkerPlan) -> WorkerPlan:
        if settings.mpi is not None:
            return _placed(worker, settings.mpi[1], settings.mpi[2], address)
        if config.rules.elastic:
            return _placed(worker, worker.local_rank, config.slots, address)
        return _placed(worker, ranks.index(worker.rank) if worker.rank in ranks else 0, len(ranks), address)

    return replace(config, workers=tuple(map(place, config.workers)))


def placed_later(command: StartCommand, config: AgentConfig, address: str) -> WorkerPlan:
    """The same for a process that is started later. Raises ConfigError when the node has too few GPUs for it."""
    if config.here:
        return command.worker
    return _placed(command.worker, command.worker.local_rank, command.slots, address)


def _placed(worker: WorkerPlan, slot: int, slots: int, address: str) -> WorkerPlan:
    """Returns the process with its share of the node: one of so many slots."""
    share = max(1, available_cores() // max(1, slots))
    environ = {**environ_snapshot(), **worker.env}
    env = {**thread_variables(share, environ), variable("bind_host"): address, **worker.env}
    if not worker.is_auxiliary_task:
        env.update(gpu_variables(slot, slots, environ, visible_gpus(environ)))
    return replace(worker, env=with_interface(env, address, interface_addresses()))
