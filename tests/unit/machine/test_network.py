"""Which address and ports of this machine others are to use."""

import socket
from contextlib import suppress

import pytest

from tfcollective._base.errors import LaunchError
from tfcollective._base.machine import network


def without_routes(monkeypatch, interfaces):
    monkeypatch.setattr(network, "route_address", lambda host: None)
    monkeypatch.setattr(network, "interface_addresses", lambda: interfaces)


def test_without_default_route_a_reachable_interface_wins(monkeypatch):
    without_routes(monkeypatch, {"lo": ("127.0.0.1", "::1"), "eth0": ("fd00::5", "10.1.2.3"), "eth1": ("10.9.9.9",)})
    assert network.own_address(()) == "10.1.2.3"


def test_a_link_that_has_only_ipv6(monkeypatch):
    without_routes(monkeypatch, {"lo": ("127.0.0.1",), "eth0": ("fe80::1", "fd00::5")})
    assert network.own_address(()) == "fd00::5"


def test_a_machine_with_nothing_but_loopback(monkeypatch):
    without_routes(monkeypatch, {"lo": ("127.0.0.1", "::1"), "eth0": ("169.254.1.1",)})
    assert network.own_address(()) == "127.0.0.1"


def server(port, *, shares):
    """Listens there on loopback, with SO_REUSEADDR if it ``shares``; None if it may not."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shares))
    with suppress(OSError):
        made.bind(("127.0.0.1", port))
        made.listen()
        return made
    made.close()
    return None


def test_held_ports_are_for_servers_that_share():
    with network.held_ports(20) as ports:
        assert len(set(ports)) == 20
        assert all(server(port, shares=False) is None for port in ports)
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        for port in ports:
            with server(port, shares=True), socket.create_connection(("127.0.0.1", port)):
                pass


def test_two_holders_share_no_port():
    with network.held_ports(1) as ports:
        with pytest.raises(LaunchError, match="no 1 free ports"), network.held_ports(1, ports):
            pass
    with network.held_ports(1, ports) as again:
        assert again == ports


def test_a_port_that_is_taken_is_not_held():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError), network.held_ports(1, [taken.getsockname()[1]]):
            pass
