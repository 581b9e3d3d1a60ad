from dataclasses import replace

import pytest

from tfcollective._base.job_keys import CONTROL, RANKS, derived_key, new_key
from tfcollective._control.wire.greeting import WELCOME, Unauthenticated, Welcome

KEY = new_key()
CERTIFICATE = b"f" * 32


def receive(data):
    left = bytearray(data)

    def take(count):
        taken = bytes(left[:count])
        del left[:count]
        return taken

    return take


def changed(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_each_end_proves_the_key():
    said = Welcome.new("job", CERTIFICATE)
    read = Welcome.read(KEY, receive(said.to_bytes(KEY)))
    assert read == said
    said.check_client(KEY, read.client_proof(KEY))


def test_numbers_are_new():
    assert len({Welcome.new("job", CERTIFICATE).number for _ in range(10)}) == 10


def test_no_byte_of_a_welcome_can_be_changed():
    data = Welcome.new("job", CERTIFICATE).to_bytes(KEY)
    lengths = {WELCOME.size - 2, WELCOME.size - 1}
    for place in {*range(len(data))} - lengths:
        with pytest.raises(Unauthenticated, match="does not prove the job key"):
            Welcome.read(KEY, receive(changed(data, place)))


@pytest.mark.parametrize("name", [b"", b"jo", b"\xff\xfe", b"j" * 4096, b"j" * 4097])
def test_another_name_under_the_same_proof(name):
    head = Welcome.new("job", CERTIFICATE).to_bytes(KEY)[: WELCOME.size - 2]
    with pytest.raises(Unauthenticated):
        Welcome.read(KEY, receive(head + len(name).to_bytes(2, "big") + name))


def test_another_key_proves_nothing():
    welcome = Welcome.new("job", CERTIFICATE)
    with pytest.raises(Unauthenticated):
        Welcome.read(KEY, receive(welcome.to_bytes(new_key())))
    with pytest.raises(Unauthenticated, match="wrong key"):
        welcome.check_client(KEY, welcome.client_proof(new_key()))


@pytest.mark.parametrize("other", [{"job_id": "another"}, {"number": b"n" * 16}, {"certificate": b"c" * 32}])
def test_a_proof_holds_for_one_connection(other):
    welcome = Welcome.new("job", CERTIFICATE)
    with pytest.raises(Unauthenticated):
        replace(welcome, **other).check_client(KEY, welcome.client_proof(KEY))


def test_a_reflected_proof_is_refused():
    """An impostor cannot prove the key by returning the other end's own proof."""
    welcome = Welcome.new("job", CERTIFICATE)
    proof = WELCOME.unpack(welcome.to_bytes(KEY)[: WELCOME.size])[1]
    with pytest.raises(Unauthenticated):
        welcome.check_client(KEY, proof)
    returned = WELCOME.pack(welcome.number, welcome.client_proof(KEY), CERTIFICATE, 3) + b"job"
    with pytest.raises(Unauthenticated):
        Welcome.read(KEY, receive(returned))


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
