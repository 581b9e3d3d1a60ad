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
    ExceptionRecord,
    ExitRecord,
    describe_exception,
    first_cause,
    first_to_be_late,
    first_to_leave,
    in_order_of_arrival,
    read_exception,
    write_exception,
)


def record(rank, time, *, code=1, signal=None, stopped=False, consequence=None):
    exception = None
    if consequence is not None:
        exception = ExceptionRecord("SomeError", "text", "traceback", time, consequence)
    return ExitRecord(
        f"worker:{rank}",
        rank,
        "node",
        10 + rank,
        None if signal else code,
        signal,
        time,
        stopped,
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
    assert (found.type, found.message, found.time, found.consequence) == (type(error).__name__, "x", 5.0, consequence)
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
def test_a_rank_that_raised_has_failed_by_that_whatever_signal_cuts_its_end_short(number, consequence, stopped):
    late = record(0, 1.0, signal=number, stopped=stopped, consequence=consequence)
    name = {9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}[number]
    assert (late.status, late.how) == (1, f"failed, and was killed by {name} before its process had ended")
    assert (late.consequence, late.of_the_program) == (consequence, not consequence)


def test_an_interrupt_is_no_error_of_the_program(tmp_path):
    path = str(tmp_path / "record")
    write_exception(path, KeyboardInterrupt(), now=1.0)
    interrupted = replace(record(0, 1.0, signal=2), exception=read_exception(path))
    assert (interrupted.status, interrupted.how) == (130, "was killed by SIGINT")
    assert not interrupted.of_the_program
    assert replace(interrupted, stopped=True).consequence


def test_the_first_cause_is_no_consequence():
    victim, cause, later = record(0, 1.0, consequence=True), record(1, 2.0, signal=9), record(2, 3.0, consequence=False)
    stopped = record(3, 0.5, signal=15, stopped=True)
    assert first_cause([later, victim, cause, stopped]) is cause
    assert first_cause([record(4, 9.0, code=0), victim, stopped]) is victim
    assert first_cause([record(4, 9.0, code=0), stopped]) is stopped  # nothing better is known
    assert first_cause([record(4, 9.0, code=0)]) is None
    assert first_cause([]) is None


def blaming(rank, time, blames, *, node="node", seen=0.0):
    """The end of a rank whose error names another."""
    exception = ExceptionRecord("PeerLostError", "text", "", time, consequence=True, blames=blames)
    return replace(record(rank, time), exception=exception, node=node, seen=seen)


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


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_clocks_of_different_hosts_decide_nothing(skew):
    first = replace(record(1, 100.0, signal=9), node="a", seen=7.0)
    later = replace(record(2, 100.5 + skew, code=3), node="b", seen=7.5)
    assert first_cause([later, first]) is first


def test_on_one_host_its_clock_decides():
    """The reports of one agent may come in another order than the failures: output is waited for."""
    first = replace(record(1, 100.0, code=3), seen=8.0)
    later = replace(record(2, 100.5, signal=11), seen=7.0)
    assert first_cause([later, first]) is first


def test_the_rank_that_others_blame_comes_before_one_that_no_rank_blames():
    blamed = replace(record(3, 50.0, code=3), node="b", seen=9.0)
    by_the_way = replace(record(5, 40.0, signal=11), node="c", seen=8.0)
    assert first_cause([by_the_way, blaming(0, 1.0, 3, seen=7.0), blamed]) is blamed


def test_blame_leads_over_several_ranks_to_the_first():
    lost = ExceptionRecord("RendezvousError", "text", "", 3.0, consequence=True)
    chain = [blaming(0, 1.0, 1), blaming(1, 2.0, 2), replace(record(2, 3.0), exception=lost), blaming(4, 0.5, 0)]
    assert first_cause(chain) is chain[2]
    circle = [blaming(0, 2.0, 1), blaming(1, 1.0, 0)]
    assert first_cause(circle) is circle[1]
    assert first_cause([blaming(0, 1.0, 0)]).rank == 0


def test_a_rank_that_others_have_waited_for_in_vain_is_late():
    timeout = ExceptionRecord("CollectiveTimeoutError", "text", "", 1.0, consequence=False, blames=2)
    waited = replace(record(0, 1.0), exception=timeout)
    stopped = record(2, 3.0, signal=15, stopped=True)
    assert first_to_be_late([waited, stopped]) is stopped
    assert first_cause([waited, stopped]) is waited  # whose exit code is the job's
    assert first_to_leave([waited, stopped]) is None
    own = ExceptionRecord("ValueError", "text", "", 2.0, consequence=False)
    assert first_to_be_late([waited, replace(stopped, exception=own)]) is None  # it says itself what was wrong
    assert first_to_be_late([blaming(0, 1.0, 2), stopped]) is None  # it was lost, or has left
    assert first_to_be_late([]) is None


def test_a_timeout_is_no_consequence_of_the_late_rank():
    assert not describe_exception(CollectiveTimeoutError("text", peer=2), 1.0).consequence


def test_a_rank_that_others_blame_but_that_did_not_fail_has_left_too_early():
    well, stopped = record(2, 0.5, code=0), record(2, 3.0, signal=15, stopped=True)
    for left in (well, stopped):
        ends = [record(3, 0.1, code=0), blaming(0, 1.0, 1), blaming(1, 2.0, 2), left]
        assert first_to_leave(ends) is left
        assert first_cause(ends) is ends[1]  # whose exit code is the job's
    assert first_to_leave([blaming(0, 1.0, 2), record(2, 2.0, code=3)]) is None  # it failed
    assert first_to_leave([record(1, 1.0), blaming(0, 2.0, 2), well]) is None  # another one failed
    assert first_to_leave([well]) is None


def test_failures_are_listed_in_order_of_arrival():
    heard = [replace(record(rank, 9.0 - rank), seen=float(rank + 1)) for rank in range(3)]
    assert in_order_of_arrival([heard[2], heard[0], record(4, 0.1, code=0), heard[1]]) == heard


def test_an_error_leaves_a_record_also_where_no_memory_is_left_for_its_traceback(tmp_path, monkeypatch):
    def fail(*unused):
        raise MemoryError

    monkeypatch.setattr("traceback.format_exception", fail)
    write_exception(str(tmp_path / "record"), MemoryError("no room"), now=1.0)
    found = read_exception(str(tmp_path / "record"))
    assert (found.type, found.message) == ("MemoryError", "no room")
    assert found.traceback == "MemoryError (its traceback cannot be made: MemoryError)"


def test_an_error_without_a_text_leaves_a_record_too(tmp_path):
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


def test_a_rank_that_fails_since_horovod_was_shut_down_is_not_the_cause():
    line = (
        "UnknownError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to"
    )
    cause, other = record(1, 2.0), replace(record(0, 1.0), stderr_tail=("Traceback:", line))
    assert first_cause([other, cause]) is cause
    assert first_cause([other]) is other
