import http.client
import logging
import socket

import pytest
from launching import until

from tfcollective._control.messages import Refusal
from tfcollective._control.serve.gloo_store import GlooStore, GlooStoreServer

SCOPES = {"global": 2, "local_node-0": 2, "cross_0": 1, "cross_1": 1}


def test_values_stay_until_the_last_rank_finishes():
    store = GlooStore(SCOPES)
    assert store.get("global", "0") is None
    store.put("global", "0", b"address of 0")
    store.put("global", "0", b"another")
    assert store.get("global", "0") == b"another"
    store.finish("global", "0")
    store.finish("global", "0")
    assert store.get("global", "0") == b"another"
    store.finish("global", "1")
    assert store.get("global", "0") is None


def test_process_sets_have_scopes_beside_the_worlds():
    store = GlooStore(SCOPES)
    store.put("global_process_set_hash_1234", "0", b"x")
    assert store.get("global_process_set_hash_1234", "0") == b"x"
    assert store.get("global", "0") is None


@pytest.mark.parametrize(
    "scope", ["", "local_node-1", "cross_2", "global2", "other_process_set_hash_1", "rank_and_size"]
)
def test_scopes_of_others_are_refused(scope):
    store = GlooStore(SCOPES)
    for call in (lambda: store.put(scope, "0", b"x"), lambda: store.get(scope, "0"), lambda: store.finish(scope, "0")):
        with pytest.raises(Refusal, match="no scope of this job"):
            call()


def test_keys_values_and_scopes_are_bounded():
    store = GlooStore(SCOPES)
    for key, value in (("", b"x"), ("k" * 257, b"x"), ("k", bytes((1 << 20) + 1))):
        with pytest.raises(Refusal, match="characters"):
            store.put("global", key, value)
    for key in range(16):
        store.put("global", str(key), b"x")
    store.put("global", "0", b"y")
    with pytest.raises(Refusal, match="16 keys already"):
        store.put("global", "16", b"x")
    with pytest.raises(Refusal, match="scopes already"):
        for number in range(1000):
            store.put(f"global_process_set_hash_{number}", "0", b"x")


def test_a_scope_without_keys_cannot_be_finished():
    store = GlooStore(SCOPES)
    scope = "global_process_set_hash_1"
    store.finish(scope, "0")
    store.put(scope, "0", b"x")
    store.finish(scope, "1")
    assert store.get(scope, "0") == b"x"


def test_all_values_together_are_bounded_and_finishing_frees():
    store = GlooStore({"global": 100})
    for key in range(64):
        store.put("global", str(key), bytes(1 << 20))
    with pytest.raises(Refusal, match="full"):
        store.put("global", "64", b"x")
    store.put("global", "63", b"")
    for key in range(100):
        store.finish("global", str(key))
    store.put("global", "64", bytes(1 << 20))


def ask(server, method, path, body=None):
    connection = http.client.HTTPConnection(server.endpoint.host, server.endpoint.port, timeout=10)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_the_protocol_is_horovods(caplog):
    with GlooStoreServer(SCOPES, "127.0.0.1") as server:
        assert server.endpoint.host == "127.0.0.1"
        assert ask(server, "GET", "/global/0") == (404, b"")
        assert ask(server, "PUT", "/global/0", b"\0\xff") == (200, b"")
        assert ask(server, "GET", "/global/0") == (200, b"\0\xff")
        for rank in "01":
            assert ask(server, "DELETE", f"/global/{rank}") == (200, b"")
        assert ask(server, "GET", "/global/0")[0] == 404
        with caplog.at_level(logging.WARNING):
            assert ask(server, "GET", "/secrets/0")[0] == 403
        assert "no scope of this job" in caplog.text
        assert ask(server, "PUT", "/global/0", bytes((1 << 20) + 1))[0] == 413
        assert ask(server, "POST", "/global/0", b"x")[0] == 405
        assert ask(server, "GET", "/too/many/parts")[0] == 404
    with pytest.raises(OSError):
        ask(server, "GET", "/global/0")


def is_heard(server):
    """On a busy machine a request may come so late that it is cut off itself."""
    try:
        return ask(server, "PUT", "/global/0", b"x")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_who_asks_for_nothing_is_cut_off():
    with GlooStoreServer(SCOPES, "127.0.0.1", silence=0.2) as server:
        with socket.create_connection((server.endpoint.host, server.endpoint.port), timeout=30) as silent:
            assert silent.recv(1) == b""
        until(lambda: is_heard(server))
