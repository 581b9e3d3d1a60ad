"""Merging what the ranks recorded: who came last, who waited, and the trace."""

import pytest

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError
from tfcollective._base.timeline import WAIT, Interval, RankTimeline, summarise, summary_text, trace_document

MS = 1_000_000


def operation(sequence, began, ended, *, channel=3, name="plan#0/bucket 0", submitted=None):
    begin = began * MS
    queued = begin if submitted is None else submitted * MS
    return Interval("allreduce", channel, sequence, 400, queued, begin, ended * MS, name)


def wait(began, ended):
    return Interval(WAIT, 0, 0, 0, began * MS, began * MS, ended * MS, "plan#0/bucket 0")


def two_ranks():
    early = RankTimeline(0, (operation(0, 10, 16), operation(1, 20, 22)))
    late = RankTimeline(1, (operation(0, 14, 16), operation(1, 19, 22), wait(20, 22)))
    return [early, late]


def test_the_last_rank_is_counted_and_awaited():
    first, second = summarise(two_ranks())
    assert (first.rank, first.operations, first.last) == (0, 2, 1)
    assert first.communicating == pytest.approx(0.008)
    assert first.waiting == pytest.approx(0.004)
    assert first.lateness == pytest.approx(0.001)
    assert second.last == 1
    assert second.lateness == pytest.approx(0.004)
    assert second.waiting == pytest.approx(0.001)


def test_what_tensorflow_did_not_wait_for_was_hidden():
    first, second = summarise(two_ranks())
    assert first.hidden == 1.0
    assert second.hidden == pytest.approx(1 - 2 / 5)
    assert second.blocked == pytest.approx(0.002)


def test_operations_not_recorded_by_ranks_are_ignored():
    first, second = two_ranks()
    rows = summarise([first, RankTimeline(1, second.intervals[1:])])
    assert [row.operations for row in rows] == [1, 1]


def test_without_buckets_nothing_is_said_of_hiding():
    (row,) = summarise([RankTimeline(0, (operation(0, 1, 2, name="x"),))])
    assert row.hidden is None
    assert row.last == 0 or row.lateness == 0.0
    assert summary_text([row]).splitlines()[1].endswith(" -")


def test_the_trace_shows_ranks_and_the_last():
    events = trace_document(two_ranks())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [e["pid"] for e in spans] == [0, 0, 1, 1, 1]
    assert spans[0]["ts"] == 0.0
    assert spans[0]["dur"] == 6000.0
    assert spans[0]["args"] == {"bytes": 400, "sequence": 0, "queued_us": 0.0, "last_rank": 1, "waited_us": 4000.0}
    assert spans[4]["cat"] == WAIT
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 4): "channel 3", (1, 4): "channel 3", (1, 0): "TensorFlow waits"}


def test_queueing_lasts_from_handover_to_turn():
    (event,) = (
        e
        for e in trace_document([RankTimeline(0, (operation(0, 5, 6, submitted=2),))])["traceEvents"]
        if e["ph"] == "X"
    )
    assert event["args"]["queued_us"] == 3000.0


def test_a_shifted_clock_moves_everything():
    moved = two_ranks()[1].shifted(7)
    assert moved.intervals[0].began - two_ranks()[1].intervals[0].began == 7
    assert moved.intervals[2].ended - two_ranks()[1].intervals[2].ended == 7


def test_json_round_trip_and_garbage():
    timeline = RankTimeline(3, two_ranks()[1].intervals, dropped=2)
    assert decode(encode(timeline), RankTimeline, "the timeline") == timeline
    for garbage in (b"null", b"{}", b'{"rank": 0, "dropped": 0, "intervals": [[1]]}'):
        with pytest.raises(ConfigError, match="the timeline cannot be read"):
            decode(garbage, RankTimeline, "the timeline")
