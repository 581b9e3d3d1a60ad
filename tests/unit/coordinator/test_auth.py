import pytest

from tfcollective.clock import ManualClock
from tfcollective.coordinator.auth import DIGEST, NONCE, SIGNATURE, TIME, Signer, Unauthenticated, Verifier, new_key

KEY = new_key()


@pytest.fixture
def clock():
    return ManualClock(1_000_000.0)


def signed(clock, key=KEY, *, method="POST", path="/p", body=b"{}"):
    return Signer.from_job_key(key).request_headers(method, path, body, clock)


def verifier(clock):
    return Verifier(Signer.from_job_key(KEY), clock)


def test_a_proved_request_is_accepted_once(clock):
    one, headers = verifier(clock), signed(clock)
    proof = one.verify("POST", "/p", headers)
    assert proof.nonce == headers[NONCE]
    proof.check_body(b"{}")
    with pytest.raises(Unauthenticated, match="replayed"):
        one.verify("POST", "/p", headers)
    one.verify("POST", "/p", signed(clock))


@pytest.mark.parametrize(("method", "path"), [("GET", "/p"), ("POST", "/q")])
def test_the_head_is_covered(clock, method, path):
    with pytest.raises(Unauthenticated, match="wrong key"):
        verifier(clock).verify(method, path, signed(clock))


def test_the_body_is_covered(clock):
    with pytest.raises(Unauthenticated, match="body"):
        verifier(clock).verify("POST", "/p", signed(clock)).check_body(b"{ }")


@pytest.mark.parametrize("name", [TIME, NONCE, DIGEST, SIGNATURE])
def test_no_header_can_be_changed_or_left_out(clock, name):
    headers = signed(clock)
    value = headers[name]
    for changed in (value[:-1] + ("0" if value[-1] != "0" else "1"), "", "é", "\udcff"):
        with pytest.raises(Unauthenticated):
            verifier(clock).verify("POST", "/p", {**headers, name: changed})
    del headers[name]
    with pytest.raises(Unauthenticated):
        verifier(clock).verify("POST", "/p", headers)


def test_another_key_is_refused(clock):
    with pytest.raises(Unauthenticated, match="wrong key"):
        verifier(clock).verify("POST", "/p", signed(clock, new_key()))


@pytest.mark.parametrize("offset", [-301.0, 301.0])
def test_clocks_may_differ_by_a_window(clock, offset):
    late = ManualClock(clock.wall() + offset)
    with pytest.raises(Unauthenticated, match="clocks differ"):
        verifier(clock).verify("POST", "/p", signed(late))


def test_a_replay_is_refused_for_as_long_as_its_time_is_accepted(clock):
    one = verifier(clock)
    headers = signed(ManualClock(clock.wall() + 299.0))
    one.verify("POST", "/p", headers)
    for _ in range(7):
        clock.advance(100.0)
        with pytest.raises(Unauthenticated, match=r"replayed|clocks"):
            one.verify("POST", "/p", headers)


def test_old_nonces_are_forgotten(clock):
    one = verifier(clock)
    for _ in range(1000):
        one.verify("POST", "/p", signed(clock))
        clock.advance(10.0)
    assert len(one._seen) < 100


def test_a_reply_belongs_to_one_request():
    signer = Signer.from_job_key(KEY)
    signature = signer.reply_signature("n", 200, b"body")
    signer.check_reply("n", 200, b"body", signature)
    for nonce, status, body in (("m", 200, b"body"), ("n", 404, b"body"), ("n", 200, b"other")):
        with pytest.raises(Unauthenticated):
            signer.check_reply(nonce, status, body, signature)


def test_the_key_is_derived():
    assert Signer.from_job_key(KEY)._key != KEY
    assert len({new_key() for _ in range(10)}) == 10
