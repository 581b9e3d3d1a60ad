"""A port that leads elsewhere."""

import socket
import threading
from contextlib import suppress

import pytest
from tfcollective_launchers.kubernetes.relay import Relay

from tfcollective._base.errors import LaunchError


@pytest.fixture
def echo():
    """Where a server listens that sends back what it gets, and ends a connection when it gets `end`."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        with connection, suppress(OSError):
            while (data := connection.recv(1 << 16)) and data != b"end":
                connection.sendall(data)

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def connected(relay):
    host, _, port = relay.address.rpartition(":")
    return socket.create_connection((host, int(port)), 20)


def test_bytes_go_both_ways_on_several_connections(echo):
    with Relay(lambda: socket.create_connection(echo)) as relay, connected(relay) as one, connected(relay) as other:
        for number, connection in enumerate((one, other, one)):
            connection.sendall(b"%d" % number)
            assert connection.recv(10) == b"%d" % number


def test_the_end_of_either_side_ends_the_other(echo):
    with Relay(lambda: socket.create_connection(echo)) as relay, connected(relay) as one:
        one.sendall(b"end")
        assert one.recv(10) == b""


@pytest.mark.parametrize("error", [LaunchError("forbidden"), ConnectionRefusedError()])
def test_a_connection_that_leads_nowhere_is_closed(error):
    def fails():
        raise error

    with Relay(fails) as relay, connected(relay) as one, suppress(ConnectionError):
        one.sendall(b"x")
        assert one.recv(10) == b""


def test_silent_connections_lead_nowhere_and_block_none(echo):
    opened = []

    def connect():
        opened.append(socket.create_connection(echo))
        return opened[-1]

    with Relay(connect) as relay, connected(relay), connected(relay), connected(relay) as one:
        one.sendall(b"x")
        assert one.recv(10) == b"x"
        assert len(opened) == 1


def test_its_end_ends_all_connections(echo):
    with Relay(lambda: socket.create_connection(echo)) as relay:
        one = connected(relay)
        one.sendall(b"x")
        assert one.recv(10) == b"x"
    with one, suppress(ConnectionError):
        assert one.recv(10) == b""
    with pytest.raises(OSError):
        connected(relay)
