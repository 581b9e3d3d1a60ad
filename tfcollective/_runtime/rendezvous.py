"""The rendezvous of ranks without a launcher: rank 0 opens a coordinator, the others find it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tfcollective._base.addresses import is_loopback_host, is_own_address, resolve, route_address
from tfcollective._base.clock import Deadline
from tfcollective._base.errors import CoordinatorError, InternalError, RendezvousError
from tfcollective._base.job_keys import JOB, derived_key
from tfcollective._base.log import get_logger
from tfcollective._base.private_directory import user_key
from tfcollective._base.settings import Settings, environ_snapshot, variable
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, is_loopback
from tfcollective._control.client.channel import Channel, Retry
from tfcollective._control.client.client import CoordinatorClient, CoordinatorUnreachableError
from tfcollective._control.identity import Identity, KeySource, key_source
from tfcollective._control.serve.process import CoordinatorConfig, CoordinatorProcess
from tfcollective._control.wire.protocol import ServerOptions

_LOG = get_logger(__name__)
_FIRST_PAUSE_S = 0.05
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104  where the listed address is not one of this machine's

# The coordinator that this process has started, and what for. It lives as long as the process: ranks that leave and
# join again come back to it.
_opened: tuple[CoordinatorConfig, CoordinatorProcess] | None = None
_hooked = False


@dataclass(frozen=True)
class Rendezvous:
    """The coordinator's address, the job key, and where to listen for peers."""

    endpoint: Endpoint
    key: bytes = field(repr=False)
    bind_host: str


def arrange(settings: Settings, identity: Identity) -> Rendezvous:
    """Opens the coordinator (rank 0) or waits until it is there.

    Raises:
        ConfigError: a job key is needed, and there is none.
        CoordinatorError: rank 0 cannot listen; or the process that answers does not hold the same key.
        RendezvousError: no process answers before the start timeout.
    """
    if identity.coordinator is None:
        raise InternalError("a world of one rank needs no rendezvous")
    key = _job_key(settings, identity)
    if identity.starts_coordinator:
        endpoint = _open(settings, identity, identity.coordinator, key)
    else:
        endpoint = identity.coordinator
        _await_coordinator(endpoint, key, identity, settings)
    bind_host = settings.bind_host or choose_bind_host(
        route_address(endpoint.host), [host for host in identity.hosts if not is_loopback_host(host)], route_address
    )
    _LOG.info("rendezvous at %s, peers reach this rank at %s", endpoint, bind_host)
    return Rendezvous(endpoint, key, bind_host)


def abandon() -> None:
    """Ends the coordinator of a world that did not come together, so that another ``init()`` starts over."""
    global _opened
    opened, _opened = _opened, None
    if opened is not None and opened[0].owner == os.getpid():
        opened[1].close()


# ---- the key --------------------------------------------------------------------------------------------------------


def _job_key(settings: Settings, identity: Identity) -> bytes:
    source = key_source(identity, settings)
    if source is KeySource.GIVEN and identity.key is not None:
        return identity.key
    if source is KeySource.USER:
        secret = user_key(settings.jobs_directory())
    else:
        _LOG.warning(
            "%s is set: anyone who reaches %s can join this job and read and change what it computes",
            variable("insecure"),
            identity.coordinator,
        )
        secret = b"tfcollective without a key"
    return derived_key(secret, JOB, identity.job_id)


# ---- rank 0 ---------------------------------------------------------------------------------------------------------


def choose_listening_host(addresses: Sequence[str], is_own: Callable[[str], bool], *, all_local: bool) -> str:
    """The address that rank 0's coordinator binds, of those that its listed host has: one of this machine.

    The host may stand for something else, a service that forwards to us, or for nothing yet: then it is every
    interface. So it is where only we call ourselves loopback; ``all_local`` says that all ranks do.
    """
    own = [address for address in addresses if is_own(address)]
    if own and (all_local or not is_loopback(own[0])):
        return own[0]
    only_ipv6 = bool(addresses) and all(":" in address for address in addresses)
    return _ANY_IPV6 if only_ipv6 else _ANY_IPV4


def _open(settings: Settings, identity: Identity, listed: Endpoint, key: bytes) -> Endpoint:
    """Returns the endpoint of the coordinator that this process starts, or has started before."""
    global _opened
    config = _configure(settings, identity, listed, key)
    if _opened is None or _opened[0] != config or not _opened[1].alive:
        abandon()
        _opened = (config, _start(config))
        _abandon_at_exit()
    host = {_ANY_IPV4: "127.0.0.1", _ANY_IPV6: "::1"}.get(config.options.bind_host, config.options.bind_host)
    return Endpoint(host, _opened[1].endpoint.port)


def _configure(settings: Settings, identity: Identity, listed: Endpoint, key: bytes) -> CoordinatorConfig:
    host = settings.bind_host or choose_listening_host(
        resolve(listed.host), is_own_address, all_local=identity.on_loopback
    )
    options = ServerOptions(
        identity.job_id,
        key,
        tuple(identity.trainers),
        settings.start_timeout,
        bind_host=host,
        bind_port=listed.port,
    )
    return CoordinatorConfig.of_this_process(options, settings)


def _abandon_at_exit() -> None:
    """Registers :func:`abandon` once a process, before ``init()`` registers the shutdown: it runs after that."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(abandon)


def _start(config: CoordinatorConfig) -> CoordinatorProcess:
    try:
        return CoordinatorProcess.start(config, environ_snapshot())
    except CoordinatorError as error:
        raise CoordinatorError(
            f"{error} (where that port cannot be used, {variable('rendezvous')}=HOST:PORT, the same on all ranks, "
            "chooses another port of rank 0's host; where another job may use it, give each job a "
            f"{variable('job_id')} of its own, or its ranks may join that job)"
        ) from error


# ---- the others -----------------------------------------------------------------------------------------------------


def _await_coordinator(
    endpoint: Endpoint, key: bytes, identity: Identity, settings: Settings, remind: float = TIMING.remind
) -> None:
    """Waits until the coordinator answers: rank 0 may start late, and its name may resolve late."""
    timeout, first = settings.start_timeout, identity.trainers[0]
    next_word = Deadline.after(remind)

    def note(error: CoordinatorError) -> None:
        nonlocal next_word
        if next_word.expired():
            _LOG.warning("waiting for %s (rank 0): %s", first, error)
            next_word = Deadline.after(remind)

    retry = Retry(timeout, tries=1, first_pause=_FIRST_PAUSE_S, errors=(CoordinatorUnreachableError,), note=note)
    with CoordinatorClient(endpoint, key, identity.job_id) as client:
        try:
            Channel(client, retry).call(lambda client: client.get("ready"))
        except CoordinatorUnreachableError as error:
            text = f"{first} (rank 0) has not opened {endpoint} within {timeout:g} s: {error}"
            raise RendezvousError(text, missing=[str(first)]) from error


# ---- where peers reach us -------------------------------------------------------------------------------------------


def choose_bind_host(to_coordinator: str | None, peers: Sequence[str], route: Callable[[str], str | None]) -> str:
    """The address of the interface that peers connect to: the one that leads to the coordinator.

    Where that is the loopback interface, since the coordinator is on this machine or its name means this machine here
    (``127.0.1.1`` in ``/etc/hosts``), it is the one that leads to a peer elsewhere, if there is one.
    """
    if to_coordinator is not None and not is_loopback(to_coordinator):
        return to_coordinator
    for peer in peers:
        address = route(peer)
        if address is not None and not is_loopback(address):
            return address
    return to_coordinator or "127.0.0.1"
