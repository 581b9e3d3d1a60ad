from dataclasses import replace

import pytest

from tfcollective._base.job_keys import CONTROL, RANKS, derived_key, new_key
from tfcollective._control.wire.auth import (
    DIGEST,
    NONCE,
    SIGNATURE,
    Unauthenticated,
    Welcome,
    check_body,
    check_hello,
    hello_headers,
)

KEY = new_key()
WELCOME = Welcome("job", "c" * 32, "s" * 32, "f" * 64)


@pytest.fixture
def ends():
    """The client's session and the coordinator's, of one connection."""
    return WELCOME.session(KEY), WELCOME.session(KEY)


def altered(text):
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def test_a_hello_proves_the_key():
    headers = hello_headers(KEY)
    assert check_hello(KEY, headers) == headers[NONCE]
    assert hello_headers(KEY)[NONCE] != headers[NONCE]
    with pytest.raises(Unauthenticated, match="wrong key"):
        check_hello(new_key(), headers)


@pytest.mark.parametrize("name", [NONCE, SIGNATURE])
def test_no_header_of_a_hello_can_be_changed_or_left_out(name):
    headers = hello_headers(KEY)
    for changed in (altered(headers[name]), "", "é", "\udcff"):
        with pytest.raises(Unauthenticated):
            check_hello(KEY, {**headers, name: changed})
    del headers[name]
    with pytest.raises(Unauthenticated):
        check_hello(KEY, headers)


def test_a_welcome_is_read_by_the_client_that_it_answers():
    welcome = Welcome.answering("job", "c" * 32, "f" * 64)
    read = Welcome.from_reply(KEY, "c" * 32, welcome.to_body(), welcome.proof(KEY))
    assert read == welcome
    assert Welcome.answering("job", "c" * 32, "f" * 64).server_nonce != welcome.server_nonce


@pytest.mark.parametrize("field", ["job_id", "client_nonce", "server_nonce", "certificate"])
def test_a_welcome_covers_job_nonces_and_certificate(field):
    other = replace(WELCOME, **{field: altered(getattr(WELCOME, field))})
    with pytest.raises(Unauthenticated):
        Welcome.from_reply(KEY, other.client_nonce, other.to_body(), WELCOME.proof(KEY))
    assert other.session(KEY).request_headers("POST", "/p", b"") != WELCOME.session(KEY).request_headers(
        "POST", "/p", b""
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'["job"]', b"[1, 2, 3]", b"[" * 100000, b"\xff"])
def test_a_welcome_that_cannot_be_read_proves_nothing(body):
    with pytest.raises(Unauthenticated, match="does not prove the job key"):
        Welcome.from_reply(KEY, "c" * 32, body, WELCOME.proof(KEY))


def test_what_a_client_says_is_no_proof_of_a_coordinator():
    """An impostor cannot prove the key by returning the client's own proof."""
    headers = hello_headers(KEY)
    with pytest.raises(Unauthenticated):
        Welcome.from_reply(KEY, headers[NONCE], WELCOME.to_body(), headers[SIGNATURE])


def test_requests_and_replies_are_proved_in_turn(ends):
    client, server = ends
    for number in range(3):
        body = b"%d" % number
        digest = server.check_head("POST", "/p", client.request_headers("POST", "/p", body))
        check_body(digest, body)
        client.check_reply(200, b"reply", server.reply_signature(200, b"reply"))


def test_a_request_is_accepted_once(ends):
    client, server = ends
    headers = client.request_headers("POST", "/p", b"")
    server.check_head("POST", "/p", headers)
    with pytest.raises(Unauthenticated):
        server.check_head("POST", "/p", headers)


def test_a_request_of_another_connection_is_refused():
    """Also of one to a coordinator that was started again with the same key."""
    first, second = (Welcome.answering("job", "c" * 32, "") for _ in range(2))
    headers = first.session(KEY).request_headers("POST", "/p", b"")
    with pytest.raises(Unauthenticated):
        second.session(KEY).check_head("POST", "/p", headers)


@pytest.mark.parametrize(("method", "path"), [("GET", "/p"), ("POST", "/q")])
def test_the_head_is_covered(ends, method, path):
    client, server = ends
    with pytest.raises(Unauthenticated):
        server.check_head(method, path, client.request_headers("POST", "/p", b""))


@pytest.mark.parametrize("name", [DIGEST, SIGNATURE])
def test_no_header_can_be_changed_or_left_out(ends, name):
    client, server = ends
    headers = client.request_headers("POST", "/p", b"")
    for changed in (altered(headers[name]), "", "é", "\udcff"):
        with pytest.raises(Unauthenticated):
            server.check_head("POST", "/p", {**headers, name: changed})
    without = {key: value for key, value in headers.items() if key != name}
    with pytest.raises(Unauthenticated):
        server.check_head("POST", "/p", without)
    server.check_head("POST", "/p", headers)  # what was refused does not count


def test_the_body_is_covered(ends):
    client, server = ends
    digest = server.check_head("POST", "/p", client.request_headers("POST", "/p", b"{}"))
    with pytest.raises(Unauthenticated, match="body"):
        check_body(digest, b"{ }")


def test_a_reply_belongs_to_one_request(ends):
    client, server = ends
    server.check_head("POST", "/p", client.request_headers("POST", "/p", b""))
    signature = server.reply_signature(200, b"body")
    for status, body in ((404, b"body"), (200, b"other")):
        with pytest.raises(Unauthenticated):
            client.check_reply(status, body, signature)
    client.check_reply(200, b"body", signature)
    client.request_headers("POST", "/p", b"")
    with pytest.raises(Unauthenticated):
        client.check_reply(200, b"body", signature)


def test_keys_differ_by_secret_purpose_and_name():
    keys = {
        derived_key(secret, purpose, name)
        for secret in (KEY, new_key())
        for purpose in (CONTROL, RANKS)
        for name in ("", "a", "b")
    }
    assert len(keys) == 12
    assert KEY not in keys
    assert derived_key(KEY, RANKS, "a") == derived_key(KEY, RANKS, "a")
    assert {len(key) for key in keys} == {32}


def test_new_keys_are_new():
    assert len({new_key() for _ in range(10)}) == 10
