"""Hosts: which are this machine, and where processes meet that have not talked to each other."""

from __future__ import annotations

import socket
import zlib

from tfcollective._base.topology import is_loopback

DEFAULT_PORT = 29477
# Below the ports that Linux gives out by itself (32768 and up).
_FIRST_PORT = 20000
_PORTS = 12000
_DISCARD_PORT = 9


def is_loopback_host(host: str) -> bool:
    """True if a host is written as this machine's loopback interface; other names are not looked up."""
    return host == "localhost" or is_loopback(host)


def job_port(name: str) -> int:
    """A port that all ranks of a job know without having talked to each other; jobs of other names mostly differ."""
    return _FIRST_PORT + zlib.crc32(name.encode()) % _PORTS


def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a host; none when the name is not known (yet)."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a name may be too long for the name service's encoding
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_own_address(address: str) -> bool:
    """True if an interface of this machine has the address.

    The routing table tells: packets to an own address leave from that address. (Binding to it would prove nothing where
    ``net.ipv4.ip_nonlocal_bind`` is set.)
    """
    return is_loopback(address) or _source_for(address) == address


def is_own_host(host: str) -> bool:
    """True if a host is this machine."""
    return any(is_own_address(address) for address in resolve(host))


def route_address(host: str) -> str | None:
    """The address of this machine from which packets go to ``host``; None if there is no route. Sends nothing."""
    return next((source for address in resolve(host) if (source := _source_for(address)) is not None), None)


def _source_for(address: str) -> str | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None
