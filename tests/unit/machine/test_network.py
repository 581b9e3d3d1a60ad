"""Which address of this machine others are to use."""

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
