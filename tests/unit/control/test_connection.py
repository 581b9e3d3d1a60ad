"""Connections to a coordinator: TLS bound to the job key, and peers that do not keep to it."""

import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import threading
import time

import pytest
from control_wire import ByHand, ManInTheMiddle, Recorder, is_cut_off
from launching import until
from time_limits import within

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.topology import Endpoint, is_loopback
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import (
    CoordinatorClient,
    CoordinatorUnreachableError,
    InterceptedError,
    UnprovenReplyError,
)
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire.certificate import Certificate
from tfcollective._control.wire.connection import client_context
from tfcollective._control.wire.greeting import PROOF_BYTES, WELCOME, Welcome
from tfcollective._control.wire.protocol import MAX_BODY_BYTES, REQUEST_HEAD, ReplyStatus, ServerOptions

KEY = new_key()
SECRET = b"def the_function_of_the_job(): " * 10
UNPROVED = "it ended before it proved the job key: a wrong key, or no process of the job"


def serve(size=2, **options):
    return CoordinatorServer(ServerOptions("job", KEY, workers(size), 60.0, **options))


def client_of(at, key=KEY):
    return CoordinatorClient(Endpoint(at.host, at.port), key, "job")


def connect(running):
    return socket.create_connection((running.endpoint.host, running.endpoint.port), timeout=within(20))


@pytest.fixture
def server():
    with serve() as running:
        yield running


@pytest.fixture
def by_hand(server):
    """A connection that has begun as it should."""
    with ByHand(server.endpoint) as one:
        one.greet(KEY)
        yield one


@pytest.fixture
def refused(server, caplog):
    """Checks that the coordinator logs the reason once, without a traceback, and still works."""

    @contextlib.contextmanager
    def checked(reason):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tfcollective"):
            yield
            until(lambda: caplog.messages)
        assert caplog.messages == [f"coordinator: refused a connection from 127.0.0.1: {reason}"]
        assert not any(one.exc_info for one in caplog.records)
        with client_of(server.endpoint) as client:
            client.put("still", "alive")

    return checked


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


def test_encrypted_traffic_cannot_be_read(server):
    with Recorder(server.endpoint) as wire, client_of(wire) as client:
        client.put_blob("call", SECRET)
        assert client.get_blob("call", timeout=1) == SECRET
        assert server.get_blob("call") == SECRET
    assert len(wire.recorded) > len(SECRET)
    for readable in (b"/v1/", b"call", b"job"):
        assert readable not in wire.recorded


def test_the_newest_tls_is_spoken(server):
    with ByHand(server.endpoint) as one:
        assert one.tls.version() == "TLSv1.3"


def test_no_older_tls_is_spoken(server):
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode = False, ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(server) as one, pytest.raises(ssl.SSLError):
        older.wrap_socket(one)


def test_certificates_are_new_and_tolerate_clock_differences():
    import datetime

    from cryptography import x509

    with serve() as one, serve() as other:
        assert one._certificate.fingerprint != other._certificate.fingerprint
        shown = ssl.get_server_certificate((one.endpoint.host, one.endpoint.port))
    found = x509.load_pem_x509_certificate(shown.encode())
    assert datetime.datetime.now() - found.not_valid_before_utc.replace(tzinfo=None) > datetime.timedelta(hours=5)


# ---- what a client finds that is not its coordinator ----------------------------------------------------------------


def test_a_wrong_key_is_named_as_possible_cause(server, refused):
    with refused(UNPROVED), client_of(server.endpoint, new_key()) as client:
        with pytest.raises(UnprovenReplyError, match=r"does not prove the job key.*TFCOLLECTIVE_KEY_FILE"):
            client.put_blob("k", SECRET)
    assert server.get_blob("k") is None


def test_a_man_in_the_middle_receives_nothing(server):
    """It has a certificate of its own, and reads what it passes on."""
    with ManInTheMiddle(server.endpoint, Certificate.make().context) as thief, client_of(thief) as client:
        with pytest.raises(InterceptedError, match="intercepts the connection"):
            client.put_blob("call", SECRET)
    assert len(thief.recorded) == WELCOME.size + len("job")


def test_a_forged_certificate_fingerprint_is_refused(server):
    fake = Certificate.make()

    def lie(data):
        return data.replace(server._certificate.fingerprint, fake.fingerprint)

    with ManInTheMiddle(server.endpoint, fake.context, lie) as thief, client_of(thief) as client:
        with pytest.raises(UnprovenReplyError, match="does not prove the job key"):
            client.put_blob("call", SECRET)
    assert fake.fingerprint in thief.recorded
    assert len(thief.recorded) == WELCOME.size + len("job")


@contextlib.contextmanager
def impostor(meet):
    """A process at a port that ``meet`` handles one connection of; what it has received."""
    said = []

    def run():
        one, _ = listener.accept()
        one.settimeout(within(20))
        with one, contextlib.suppress(OSError), meet(one) as met:
            while data := met.recv(1 << 16):
                said.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield Endpoint(*listener.getsockname()[:2]), said
        thread.join(within(20))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_a_client_is_not_talked_out_of_tls(answer):
    """By something that says it speaks plain text only, or an older TLS."""

    def downgrade(one):
        one.recv(1 << 16)
        one.sendall(answer)
        return one

    with impostor(downgrade) as (endpoint, said), client_of(endpoint) as client:
        with pytest.raises(CoordinatorError, match=r"does not speak TLS 1\.3.*nothing was sent"):
            client.put_blob("call", SECRET)
    assert SECRET not in b"".join(said)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n" * 5, bytes(WELCOME.size), b"\xff" * 70000])
def test_a_server_without_the_key_is_not_believed(answer):
    def greet(one):
        tls = Certificate.make().context.wrap_socket(one, server_side=True)
        with contextlib.suppress(OSError):  # the client may have ended before it has all of it
            tls.sendall(answer)
        return tls

    with impostor(greet) as (endpoint, said), client_of(endpoint) as client:
        with pytest.raises(UnprovenReplyError, match="does not prove the job key"):
            client.put_blob("call", SECRET)
    assert said == []


def test_a_server_that_says_nothing_is_given_up():
    def silent(one):
        return Certificate.make().context.wrap_socket(one, server_side=True)

    with impostor(silent) as (endpoint, said), CoordinatorClient(endpoint, KEY, reply_timeout=1.0) as client:
        with pytest.raises(CoordinatorUnreachableError, match=f"no answer from the coordinator at {endpoint}"):
            client.put_blob("call", SECRET)
    assert said == []


def test_a_server_that_ends_early_is_unreachable():
    ends = {"tls": 0, "greeting": 0, "request": 0}

    def serve_for_a_while(listener):
        certificate = Certificate.make()
        for step in ends:
            for _ in range(2):  # the client asks twice
                one, _ = listener.accept()
                with one, contextlib.suppress(OSError):
                    one.settimeout(within(20))
                    ends[step] += 1
                    if step == "tls":
                        one.recv(1)
                        continue
                    tls = certificate.context.wrap_socket(one, server_side=True)
                    if step == "request":
                        tls.sendall(Welcome.new("job", certificate.fingerprint).to_bytes(KEY))
                        tls.recv(PROOF_BYTES)
                    else:
                        tls.sendall(b"half a welcome")
                    tls.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_for_a_while, args=(listener,))
        thread.start()
        for _ in ends:
            with client_of(Endpoint(*listener.getsockname()[:2])) as client:
                with pytest.raises(CoordinatorUnreachableError, match="no answer from the coordinator"):
                    client.put_blob("call", SECRET)
        thread.join(within(20))
    assert ends == dict.fromkeys(ends, 2)


# ---- what a coordinator finds that is not its client ----------------------------------------------------------------


def client_hello():
    """The beginning of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x00\x05garbage" * 10, b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_tls_is_refused(server, caplog, garbage):
    with caplog.at_level(logging.WARNING, logger="tfcollective"), connect(server) as peer:
        peer.sendall(garbage)
        assert is_cut_off(peer)
        until(lambda: "refused a connection from 127.0.0.1: TLS failed: " in caplog.text)
    assert len(caplog.messages) == 1
    assert not any(one.exc_info for one in caplog.records)
    with client_of(server.endpoint) as client:
        client.put("still", "alive")


@pytest.mark.parametrize("said", [b"", b"x", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_tls_without_a_greeting_that_ends(server, refused, said):
    with refused(UNPROVED), ByHand(server.endpoint) as peer:
        peer.tls.sendall(said[: PROOF_BYTES - 1])


@pytest.mark.parametrize("sent", [1, 50, None])
def test_a_connection_that_ends_during_its_handshake(server, refused, sent):
    with refused(UNPROVED), connect(server) as peer:
        peer.sendall(client_hello()[:sent])


def test_a_proof_with_another_key(server, refused):
    with refused("wrong key"), ByHand(server.endpoint) as peer:
        peer.tls.sendall(peer.welcome(KEY).client_proof(new_key()))
        assert peer.is_cut_off()


def test_a_request_without_proof_is_refused_unread(server, refused):
    with refused("wrong key"), ByHand(server.endpoint) as peer:
        peer.tls.sendall(REQUEST_HEAD.pack(6, MAX_BODY_BYTES) + b"/v1/put" + bytes(PROOF_BYTES))
        assert peer.is_cut_off()


def test_a_greeting_that_is_replayed(server, refused):
    with ByHand(server.endpoint) as one:
        proof = one.welcome(KEY).client_proof(KEY)
        one.tls.sendall(proof)
        assert one.ask("/v1/status")[0] == ReplyStatus.OK
    with refused("wrong key"), ByHand(server.endpoint) as thief:
        thief.tls.sendall(proof)
        assert thief.is_cut_off()


def test_a_restarted_coordinator_refuses_an_old_greeting():
    with serve() as first, ByHand(first.endpoint) as one:
        welcome = one.welcome(KEY)
    with serve() as second, ByHand(second.endpoint) as thief:
        thief.tls.sendall(welcome.client_proof(KEY))
        assert thief.is_cut_off()


def test_handshakes_and_greetings_that_stall_are_cut_off():
    with serve(proof_timeout=0.3) as running:
        beginning = client_hello()
        peers = [connect(running) for _ in range(4)]
        for peer, data in zip(peers, (b"", beginning[:1], beginning[:50], beginning), strict=True):
            with contextlib.suppress(ConnectionError):  # cut off already
                peer.sendall(data)
        for peer in peers:
            assert is_cut_off(peer)
            peer.close()
        with contextlib.suppress(OSError), ByHand(running.endpoint) as slow:
            slow.tls.sendall(b"half")
            assert slow.is_cut_off()
        until(lambda: not running._streams)


def test_the_oldest_of_many_unauthenticated_connections_is_closed(server):
    with client_of(server.endpoint) as client:
        client.put("k", 1)  # this connection has proved the key and stays
        peers = [connect(server) for _ in range(200)]
        for peer in peers[:50]:
            assert is_cut_off(peer)
        assert client.put("k", 2) == 2
        with client_of(server.endpoint) as newcomer:
            assert newcomer.put("k", 3) == 3
        for peer in peers:
            peer.close()


def test_a_client_closing_immediately_leaves_nothing(server, caplog):
    for _ in range(20):
        connect(server).close()
    with client_of(server.endpoint) as client:
        client.put("k", 1)  # it comes after them
        until(lambda: len(server._streams) == 1)
    assert caplog.messages == []


def test_many_refusals_make_few_lines(server, caplog):
    with caplog.at_level(logging.WARNING, logger="tfcollective"):
        begin = time.monotonic()
        for _ in range(200):
            with connect(server) as peer:
                peer.sendall(b"garbage")
                assert is_cut_off(peer)
        assert 1 <= len(caplog.records) <= 2 + (time.monotonic() - begin)


# ---- with the key ---------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_long_stays_unread(by_hand, refused):
    with refused(f"a body of {MAX_BODY_BYTES + 1} bytes; {MAX_BODY_BYTES} are allowed"):
        by_hand.tls.sendall(REQUEST_HEAD.pack(7, MAX_BODY_BYTES + 1))
        assert by_hand.is_cut_off()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/status", b"not json"),
        ("/v1/status", b"[]"),
        ("/v1/status", b"[" * 100000),
        ("/v1/put", b"{}"),
        ("/v1/put", b'{"key": 3, "value": 1}'),
        ("/v1/get", b'{"key": "k", "version": true, "timeout": 0}'),
        ("/v1/get", b'{"key": "k", "version": 0, "timeout": -1}'),
        ("/v1/get", b'{"key": "k", "version": 0, "timeout": NaN}'),
        ("/v1/leave", b'{"task": "unknown"}'),
        ("/v1/beat", b'{"task": {"type": "worker", "index": 0}, "activity": "", "info": 3}'),
        ("/v1/exited", b'{"record": {}}'),
        ("/v1/none", b"{}"),
        ("", b""),
    ],
)
def test_a_request_that_cannot_be_answered(by_hand, path, body):
    status, reply = by_hand.ask(path, body)
    assert status == ReplyStatus.REFUSED
    assert json.loads(reply)["error"]
    assert by_hand.ask("/v1/status")[0] == ReplyStatus.OK


def test_requests_that_come_in_pieces_or_together(by_hand):
    request = REQUEST_HEAD.pack(10, 2) + b"/v1/status{}"
    for byte in request:
        by_hand.tls.sendall(bytes([byte]))
    by_hand.tls.sendall(request)
    for _ in range(2):
        assert by_hand.receive(1) == bytes([ReplyStatus.OK])
        assert json.loads(by_hand.receive(int.from_bytes(by_hand.receive(4), "big")))["job"] == "job"


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_connection_closed_while_idle_is_replaced(server, end):
    with client_of(server.endpoint) as client:
        for number in range(1, 4):
            assert client.put("k", number) == number
            for stream in list(server._streams):
                server._loop.call_soon_threadsafe(getattr(stream.transport, end))
            until(lambda: not server._streams)


def test_a_fork_shares_no_connection(server):
    """Each of the two would read the other's replies."""
    with client_of(server.endpoint) as client:
        client.put("k", 1)
        (before,) = server._streams
        child = os.fork()
        if child == 0:
            version = 0
            with contextlib.suppress(Exception):
                version = client.put("k", 2)
            os._exit(version)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert client.get("k").value == 2
        assert before in server._streams


def test_a_fork_needs_no_lock_of_its_parent(server):
    with client_of(server.endpoint) as client:
        client.put("k", 1)
        held, done = threading.Event(), threading.Event()

        def hold():
            with client._lock:
                held.set()
                done.wait(within(60))

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(within(20))
        child = os.fork()
        if child == 0:
            version = 0
            with contextlib.suppress(Exception):
                version = client.put("k", 2)
            os._exit(version)
        try:
            ended = []
            until(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0] == child)
            assert os.waitstatus_to_exitcode(ended[-1][1]) == 2
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            done.set()
            holder.join()


def test_one_stale_connection_is_all_that_costs_time(server):
    """A firewall that has forgotten one idle connection has forgotten all of them."""
    with CoordinatorClient(server.endpoint, KEY, reply_timeout=within(20)) as client:
        waiting = [threading.Thread(target=client.wait, args=("k",), kwargs={"timeout": 60.0}) for _ in range(3)]
        for thread in waiting:
            thread.start()
        until(lambda: len(server._streams) == 3)
        with client_of(server.endpoint) as other:
            other.put("k", 1)
        for thread in waiting:
            thread.join()
        until(lambda: len(server._streams) == 3)
        for stream in list(server._streams):
            server._loop.call_soon_threadsafe(stream.transport.pause_reading)
        client._reply_timeout = 0.5
        with pytest.raises(CoordinatorUnreachableError):
            client.get("k")
        client._reply_timeout = within(20)
        assert client.get("k").value == 1


def test_both_ends_notice_a_host_that_is_gone(server):
    with client_of(server.endpoint) as client:
        client.put("k", 1)
        (stream,) = server._streams
        for end in (stream.transport.get_extra_info("socket"), client._idle[0]._tls):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 90_000


def test_a_slow_handshake_leaves_less_for_the_greeting(monkeypatch):
    """One deadline for all of it, or a connection may take three times as long as its caller has."""

    class Later:
        seconds = 0.0

        def monotonic(self):
            return time.monotonic() + self.seconds

    later = Later()
    monkeypatch.setattr("tfcollective._base.clock.time", later)

    def slow(one):
        later.seconds = 3600.0
        return Certificate.make().context.wrap_socket(one, server_side=True)

    with impostor(slow) as (endpoint, _), CoordinatorClient(endpoint, KEY, reply_timeout=600.0) as client:
        with pytest.raises(CoordinatorUnreachableError, match="timed out"):
            client.get("k")


def test_closing_ends_connections_that_have_said_nothing():
    running = serve()
    running.start()
    with connect(running) as silent, client_of(running.endpoint) as client:
        client.put("k", 1)
        until(lambda: len(running._streams) == 2)
        running.close()
        assert is_cut_off(silent)


def test_many_tasks_join_at_once():
    size, worlds = 60, []

    def join(index):
        with client_of(running.endpoint) as client:
            task = TaskKey("worker", index)
            worlds.append(Channel(client).join(task, size=size, node="n", pid=1, address=str(index), timeout=60))

    with serve(size) as running:
        threads = [threading.Thread(target=join, args=(index,)) for index in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within(60))
    assert len(worlds) == size
    assert all(world == worlds[0] for world in worlds)
