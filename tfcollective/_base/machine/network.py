"""The addresses and ports of this machine that other machines use."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import psutil

from tfcollective._base.addresses import route_address
from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective._base.settings import variable

# Documentation's own networks (RFC 5737, RFC 3849): nothing is sent there, but the default route leads there.
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
_INTERFACE = "HOROVOD_GLOO_IFACE"


def choose_address(interfaces: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> str:
    """The first address that fits one of ``wanted``: names of interfaces, or networks such as ``10.0.0.0/8``.

    Interfaces may be called differently on every host. Raises ConfigError that lists the interfaces.
    """
    for one in wanted:
        network = _network(one)
        for name, addresses in interfaces.items():
            for address in addresses:
                if name == one or (network is not None and ipaddress.ip_address(address) in network):
                    return address
    listed = "; ".join(f"{name} {' '.join(addresses)}" for name, addresses in interfaces.items())
    raise ConfigError(f"no interface here is or lies in {', '.join(wanted)}; there are: {listed}")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def interface_addresses() -> dict[str, tuple[str, ...]]:
    """The addresses of this machine's interfaces by name, without those that are good on one link only."""
    found = {
        name: tuple(
            entry.address
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address
        )
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}


def own_address(wanted: Sequence[str]) -> str:
    """Returns the address at which others reach this machine, as far as it knows: on an interface that is ``wanted``,
    else where the default route leads out, else, in a network without one, on the first interface that is no loopback,
    else on loopback. Raises ConfigError when no interface is the wanted one.
    """
    if wanted:
        return choose_address(interface_addresses(), wanted)
    routed = next((address for place in _ANYWHERE if (address := route_address(place))), None)
    return routed or _first_outside(interface_addresses()) or "127.0.0.1"


def _first_outside(interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """An address that is no loopback's nor of one link only; IPv4 first, as where a route decides."""
    found = [ipaddress.ip_address(address) for addresses in interfaces.values() for address in addresses]
    outside = [one for one in found if not (one.is_loopback or one.is_link_local)]
    return next((str(one) for one in sorted(outside, key=lambda one: one.version)), None)


def with_interface(
    env: Mapping[str, str], address: str | None, interfaces: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The variables with the name of the interface that has ``address``, which Gloo wants to know. Only for ranks that
    run on Horovod's engine; what the user has chosen stays."""
    found = interface_of(interfaces, address)
    if env.get(variable("engine")) != "horovod" or _INTERFACE in env or found is None:
        return dict(env)
    return {**env, _INTERFACE: found}


def interface_of(interfaces: Mapping[str, Sequence[str]], address: str | None) -> str | None:
    """The name of the interface with this address, or None."""
    return next((name for name, addresses in interfaces.items() if address in addresses), None)


_PORTS = range(20000, 32000)


@contextmanager
def held_ports(count: int, among: Sequence[int] = _PORTS) -> Iterator[tuple[int, ...]]:
    """Chooses ``count`` free ports of this machine, for servers that take a port and no socket: those of JAX, torch and
    TensorFlow. While the context is open no other process gets them. Raises LaunchError.

    Each is bound at all addresses by a socket that does not listen and that has SO_REUSEADDR: a server binds beside it
    if it has SO_REUSEADDR, too, as all of these do, and nobody who asks for any free port gets it. They lie below the
    range from which Linux gives out ports by itself.
    """
    with ExitStack() as held:
        found: list[int] = []
        # Not always the same ones: jobs start side by side, and may have seeded the common generator alike.
        for port in random.SystemRandom().sample(among, len(among)):
            if len(found) == count:
                break
            holder = _hold(port)
            if holder is not None:
                found.append(held.enter_context(holder).getsockname()[1])
        if len(found) < count:
            raise LaunchError(f"there are no {count} free ports here")
        yield tuple(found)


def _hold(port: int) -> socket.socket | None:
    """Returns a socket that holds the port, or None if another one does."""
    both = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        if both:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", port))
        # Not sooner: two of these would share the port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        holder.close()
        return None
    return holder
