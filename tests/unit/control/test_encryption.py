"""Connections that leave a host are encrypted, and bound to the coordinator's certificate by the job key."""

import contextlib
import logging
import socket
import ssl
import sys
import threading

import psutil
import pytest
from control_wire import ByHand, ManInTheMiddle, Recorder
from launching import until
from time_limits import within

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.topology import Endpoint, is_loopback
from tfcollective._control.client.client import CoordinatorClient, InterceptedError, UnprovenReplyError
from tfcollective._control.serve import server
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire import connection
from tfcollective._control.wire.auth import hello_headers
from tfcollective._control.wire.certificate import Certificate
from tfcollective._control.wire.protocol import ENCRYPTED_ONLY, HELLO_PATH, ServerOptions

KEY = new_key()
SECRET = b"def the_function_of_the_job(): " * 10


def serve(encryption="on", size=2, **options):
    return CoordinatorServer(ServerOptions("job", KEY, workers(size), 60.0, encryption=encryption, **options))


def client_of(at, encryption="on", key=KEY):
    return CoordinatorClient(Endpoint(at.host, at.port), key, "job", encryption=encryption)


@pytest.fixture
def encrypted():
    with serve() as running:
        yield running


@pytest.fixture
def far_apart(monkeypatch):
    """Treats all addresses of this host as those of another host."""
    for module in (connection, server):
        monkeypatch.setattr(module, "is_loopback", lambda address: False)


def own_addresses():
    found = [one.address for all_of_one in psutil.net_if_addrs().values() for one in all_of_one]
    return [one for one in found if one.count(".") == 3 and not is_loopback(one)]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_which_addresses_are_loopback(address, expected):
    assert is_loopback(address) is expected


def test_nothing_that_is_said_can_be_read_on_the_way(encrypted):
    with Recorder(encrypted.endpoint) as wire, client_of(wire) as client:
        client.put_blob("call", SECRET)
        assert client.get_blob("call", timeout=1) == SECRET
        assert encrypted.get_blob("call") == SECRET
    assert len(wire.recorded) > len(SECRET)
    for readable in (b"HTTP", b"/v1/", b"call", b"job"):
        assert readable not in wire.recorded


def test_without_encryption_it_can_be_read_but_holds_no_key():
    """Checks that the test above would find readable text."""
    with serve("off") as plain, Recorder(plain.endpoint) as wire, client_of(wire, "off") as client:
        client.put("call", SECRET.decode())
    assert SECRET in wire.recorded
    assert HELLO_PATH.encode() in wire.recorded
    for key in (KEY, KEY.hex().encode()):
        assert key not in wire.recorded


@pytest.mark.usefixtures("far_apart")
def test_encrypted_is_what_leaves_a_host():
    with serve("auto") as far, Recorder(far.endpoint) as wire, client_of(wire, "auto") as client:
        client.put("call", SECRET.decode())
    assert SECRET not in wire.recorded
    assert b"HTTP" not in wire.recorded


def test_an_address_of_this_host_that_others_reach_is_served_encrypted():
    addresses = own_addresses()
    if not addresses:
        pytest.skip("this machine has the loopback interface only")
    with serve("auto", bind_host=addresses[0]) as far, client_of(far.endpoint, "auto") as client:
        client.put("k", 1)
        (held,) = client._idle
        assert isinstance(held._http.sock, ssl.SSLSocket)
        assert held._http.sock.version() == "TLSv1.3"
        with ByHand(far.endpoint) as plain:
            assert plain.ask(HELLO_PATH, b"", hello_headers(KEY))[0] == ENCRYPTED_ONLY


def test_what_stays_on_a_host_is_not_encrypted():
    with serve("auto") as near, client_of(near.endpoint, "auto") as client:
        client.put("k", 1)
        (held,) = client._idle
        assert not isinstance(held._http.sock, ssl.SSLSocket)
        assert near._certificate is None  # nothing to be made, either


def test_on_every_interface_both_are_served():
    with serve("auto", bind_host="0.0.0.0") as wide:
        at = Endpoint("127.0.0.1", wide.endpoint.port)
        for encryption in ("auto", "on", "off"):
            with client_of(at, encryption) as client:
                client.put(encryption, 1)


@pytest.mark.usefixtures("far_apart")
def test_a_client_that_does_not_encrypt_is_refused_and_says_why(caplog):
    with serve("auto") as far, client_of(far.endpoint, "off") as client:
        with pytest.raises(CoordinatorError, match=r"encrypted connections only.*TFCOLLECTIVE_ENCRYPTION"):
            client.put("k", 1)
        assert far.get_blob("k") is None
    assert "the connection is not encrypted" in caplog.text


# ---- proxies between client and coordinator ------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["on", "off"])
def test_a_man_in_the_middle_is_noticed_before_anything_is_sent(setting):
    """The proxy has its own certificate, and reads the traffic that it forwards, encrypted or not."""
    context = Certificate.make().context
    with serve(setting) as running, ManInTheMiddle(running.endpoint, context, setting == "on") as thief:
        with client_of(thief) as client:
            with pytest.raises(InterceptedError, match="intercepts the connection"):
                client.put_blob("call", SECRET)
        assert HELLO_PATH.encode() in thief.recorded  # it has read the greeting
        assert b"/v1/put" not in thief.recorded
        assert SECRET not in thief.recorded
        assert running.get_blob("call") is None


def test_a_man_in_the_middle_that_says_that_its_certificate_is_the_coordinators(encrypted):
    """It changes the coordinator's answer, which is proved with the job key."""

    class Liar(ManInTheMiddle):
        def _pass_on(self, source, sink):
            class Changed:
                def recv(self, size):
                    data = source.recv(size)
                    return data.replace(encrypted._certificate.fingerprint.encode(), fake.fingerprint.encode())

            super()._pass_on(Changed(), sink)

    fake = Certificate.make()
    with Liar(encrypted.endpoint, fake.context) as thief, client_of(thief) as client:
        with pytest.raises(UnprovenReplyError, match="does not prove the job key"):
            client.put_blob("call", SECRET)
    assert fake.fingerprint.encode() in thief.recorded
    assert SECRET not in thief.recorded


@pytest.mark.usefixtures("far_apart")
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_a_client_is_not_talked_out_of_encryption(answer):
    """By something that says it speaks plain HTTP only, or an older TLS."""
    said = []

    def downgrade():
        one, _ = listener.accept()
        with one:
            said.append(one.recv(1 << 16))
            one.sendall(answer)
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 16):
                    said.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=downgrade)
        thread.start()
        with client_of(Endpoint(*listener.getsockname()[:2]), "auto") as client:
            with pytest.raises(CoordinatorError, match=r"does not speak TLS 1\.3.*nothing was sent"):
                client.put_blob("call", SECRET)
        thread.join(within(20))
    assert b"".join(said).startswith(b"\x16\x03")
    assert b"HTTP" not in b"".join(said)


def test_only_the_newest_tls_is_spoken(encrypted):
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode = False, ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((encrypted.endpoint.host, encrypted.endpoint.port)) as one:
        with pytest.raises(ssl.SSLError):
            older.wrap_socket(one)


def test_a_wrong_key_is_not_taken_for_a_man_in_the_middle(encrypted):
    with client_of(encrypted.endpoint, key=new_key()) as client:
        with pytest.raises(UnprovenReplyError, match="status 401"):
            client.put("k", 1)


# ---- connections of every kind --------------------------------------------------------------------------------------


def connect(running):
    one = socket.create_connection((running.endpoint.host, running.endpoint.port))
    one.settimeout(within(20))
    return one


def is_cut_off(one):
    try:
        while one.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


def client_hello():
    """The beginning of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = connection._context()
    tls = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return tls, incoming, outgoing


def test_handshakes_that_stall_are_cut_off():
    with serve(body_timeout=0.3) as running:
        beginning = client_hello()[2].read()
        peers = [connect(running) for _ in range(4)]
        for peer, data in zip(peers, (b"", beginning[:1], beginning[:50], beginning), strict=True):
            peer.sendall(data)
        for peer in peers:
            assert is_cut_off(peer)
            peer.close()
        with client_of(running.endpoint) as client:
            assert client.put("still", "alive") == 1
            until(lambda: len(running._doors) == 1)


def test_a_handshake_that_is_garbage_makes_a_line(encrypted, caplog):
    with caplog.at_level(logging.WARNING, logger="tfcollective"), connect(encrypted) as peer:
        peer.sendall(b"\x16\x03\x01\x00\x05garbage" * 10)
        assert is_cut_off(peer)
        until(lambda: "a TLS handshake of 127.0.0.1 failed" in caplog.text)
    assert not any(one.exc_info for one in caplog.records)


def test_a_client_that_ends_before_its_first_byte_leaves_nothing(encrypted):
    for _ in range(20):
        connect(encrypted).close()
    with client_of(encrypted.endpoint) as client:
        client.put("k", 1)  # it comes after them
        until(lambda: len(encrypted._doors) == 1)


def test_a_request_that_comes_in_one_piece_with_the_end_of_the_handshake(encrypted):
    tls, incoming, outgoing = client_hello()
    with connect(encrypted) as one:
        one.sendall(outgoing.read())
        while True:
            incoming.write(one.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
        tls.write(b"POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        one.sendall(outgoing.read())  # the end of the handshake, and this
        answer = b""
        while b"\r\n" not in answer:
            incoming.write(one.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += tls.read(1 << 16)
    assert answer.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("encryption", ["on", "off"])
@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_connection_that_was_ended_while_it_was_idle_is_replaced(encryption, end):
    if (encryption, end) == ("on", "close") and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 leaves it to the client to end TLS")
    with serve(encryption) as running, client_of(running.endpoint, encryption) as client:
        for number in range(1, 4):
            assert client.put("k", number) == number
            for door in list(running._doors.values()):
                running._loop.call_soon_threadsafe(getattr(door.transport, end))
            until(lambda: not running._doors)


def test_without_the_package_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "tfcollective._control.wire.certificate", None)
    with pytest.raises(CoordinatorError, match=r"Install the package cryptography.*TFCOLLECTIVE_ENCRYPTION=off"):
        serve("on").start()
    with serve("off", bind_host="0.0.0.0") as plain, client_of(plain.endpoint, "off") as client:
        client.put("k", 1)


def test_closing_ends_connections_that_have_said_nothing():
    running = serve()
    running.start()
    with connect(running) as silent, client_of(running.endpoint) as client:
        client.put("k", 1)
        until(lambda: len(running._doors) == 2)
        running.close()
        assert is_cut_off(silent)


def test_many_tasks_join_at_once_over_tls():
    size, worlds = 60, []

    def join(index):
        with client_of(running.endpoint) as client:
            task = TaskKey("worker", index)
            worlds.append(client.join(task, size=size, node="n", pid=1, address=str(index), timeout=60))

    with serve(size=size) as running:
        threads = [threading.Thread(target=join, args=(index,)) for index in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within(60))
    assert len(worlds) == size
    assert all(world == worlds[0] for world in worlds)


def test_certificates_are_new_and_valid_for_clocks_that_differ():
    import datetime

    from cryptography import x509

    with serve() as one, serve() as other:
        assert one._certificate.fingerprint != other._certificate.fingerprint
        shown = ssl.get_server_certificate((one.endpoint.host, one.endpoint.port))
    found = x509.load_pem_x509_certificate(shown.encode())
    assert datetime.datetime.now() - found.not_valid_before_utc.replace(tzinfo=None) > datetime.timedelta(hours=5)
