import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tfcollective._base.codec import decode, encode, from_document
from tfcollective._base.errors import (
    CollectiveAbortedError,
    CollectiveTimeoutError,
    ConfigError,
    PeerLostError,
    RendezvousError,
)
from tfcollective._base.failures import (
    ErrorKind,
    ExceptionRecord,
    ExitReason,
    ExitRecord,
    describe_exception,
    read_exception,
    write_exception,
)


def record(rank, time, *, code=1, signal=None, stopped=False, consequence=None):
    exception = None
    if consequence is not None:
        exception = ExceptionRecord(
            "SomeError", "text", "traceback", time, ErrorKind.PEER if consequence else ErrorKind.OWN
        )
    return ExitRecord(
        f"worker:{rank}",
        rank,
        "node",
        10 + rank,
        None if signal else code,
        signal,
        time,
        ExitReason.STOPPED if stopped else ExitReason.ENDED,
        "",
        ("tail",),
        exception,
    )


class UnavailableError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (ValueError("x"), False),
        (PeerLostError("x"), True),
        (CollectiveAbortedError("x"), True),
        (CollectiveTimeoutError("x"), False),
        (RendezvousError("x"), True),
        (UnavailableError("x"), True),
    ],
)
def test_an_exception_survives_the_file(tmp_path, error, consequence):
    path = tmp_path / "failure.json"
    try:
        raise error
    except Exception as caught:
        write_exception(str(path), caught, now=5.0)
    found = read_exception(str(path))
    assert found is not None
    assert (found.type, found.message, found.time) == (type(error).__name__, "x", 5.0)
    assert (found.kind is ErrorKind.PEER) is consequence
    assert "raise error" in found.traceback
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["failure.json"]


def test_the_first_exception_stays(tmp_path):
    path = str(tmp_path / "failure.json")
    write_exception(path, ValueError("first"), now=1.0)
    write_exception(path, ValueError("second"), now=2.0)
    assert read_exception(path).message == "first"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b"\xff", b"null"])
def test_an_unreadable_file_is_no_record(tmp_path, content):
    path = Path(tmp_path / "failure.json")
    if content is not None:
        path.write_bytes(content)
    assert read_exception(str(path)) is None


@pytest.mark.parametrize(
    "one", [record(0, 1.0), record(3, 2.5, signal=9, stopped=True), record(1, 1.0, consequence=True)]
)
def test_exit_record_round_trip(one):
    assert decode(encode(one), ExitRecord, "the record") == one


@pytest.mark.parametrize("change", [{"task": 3}, {"pid": "1"}, {"time": None}, {"stderr_tail": 3}, {"exception": {}}])
def test_other_documents_are_no_exit_records(change):
    with pytest.raises(ConfigError, match=f"the record cannot be read: .*{next(iter(change))}"):
        from_document({**asdict(record(0, 1.0)), **change}, ExitRecord, "the record")


def test_status_and_words():
    assert (record(0, 1.0, code=3).status, record(0, 1.0, code=3).how) == (3, "exited with code 3")
    assert (record(0, 1.0, signal=9).status, record(0, 1.0, signal=9).how) == (137, "was killed by SIGKILL")
    assert record(0, 1.0, signal=63).how == "was killed by signal 63"
    assert not record(0, 1.0, code=0).failed


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("consequence", [False, True])
@pytest.mark.parametrize("number", [9, 11, 15])
def test_an_exception_counts_before_a_later_signal(number, consequence, stopped):
    late = record(0, 1.0, signal=number, stopped=stopped, consequence=consequence)
    name = {9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}[number]
    assert (late.status, late.how) == (1, f"failed, and was killed by {name} before its process had ended")
    assert (late.consequence, late.raised) == (consequence, not consequence)


def test_an_interrupt_is_no_error_of_the_program(tmp_path):
    path = str(tmp_path / "record")
    write_exception(path, KeyboardInterrupt(), now=1.0)
    interrupted = replace(record(0, 1.0, signal=2), exception=read_exception(path))
    assert (interrupted.status, interrupted.how) == (130, "was killed by SIGINT")
    assert not interrupted.raised
    assert replace(interrupted, reason=ExitReason.STOPPED).consequence


def test_an_error_says_which_rank_it_blames(tmp_path):
    for number, (error, blamed) in enumerate(
        [
            (PeerLostError("x", peer=3), 3),
            (CollectiveAbortedError("x", peer=2), 2),
            (PeerLostError("x"), None),
            (CollectiveTimeoutError("x", peer=1), 1),
            (ValueError("x"), None),
        ]
    ):
        path = str(tmp_path / str(number))
        write_exception(path, error, now=1.0)
        assert read_exception(path).blames == blamed
    path = str(tmp_path / "through TensorFlow")
    write_exception(path, RuntimeError("x"), now=1.0, consequence=True, blames=5)
    assert read_exception(path).blames == 5


def test_a_timeout_is_the_ranks_own_failure():
    assert describe_exception(CollectiveTimeoutError("text", peer=2), 1.0).kind is ErrorKind.OWN


def test_an_error_is_recorded_without_memory_left(tmp_path, monkeypatch):
    def fail(*unused):
        raise MemoryError

    monkeypatch.setattr("traceback.format_exception", fail)
    write_exception(str(tmp_path / "record"), MemoryError("no room"), now=1.0)
    found = read_exception(str(tmp_path / "record"))
    assert (found.type, found.message) == ("MemoryError", "no room")
    assert found.traceback == "MemoryError (its traceback cannot be made: MemoryError)"


def test_an_error_without_text_is_recorded(tmp_path):
    class Mute(ValueError):
        def __str__(self):
            raise ZeroDivisionError

    write_exception(str(tmp_path / "record"), Mute(), now=1.0)
    assert read_exception(str(tmp_path / "record")).message == "(its text cannot be made: ZeroDivisionError)"


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_both_ends_of_a_huge_text_are_kept(tmp_path, letter):
    try:
        raise ValueError("first" + letter * 3_000_000 + "last")
    except ValueError as error:
        write_exception(str(tmp_path / "record"), error, now=1.0)
    found = read_exception(str(tmp_path / "record"))
    for text in (found.message, found.traceback):
        assert text.rstrip().endswith("last")
        assert "characters left out" in text
    assert found.message.startswith("first")
    assert "test_both_ends" in found.traceback
