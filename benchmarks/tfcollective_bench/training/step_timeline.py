"""A few steps of a job on one clock: when every rank computed, waited and communicated. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfcollective._base.timeline import WAIT

__all__ = ["RankSteps", "StepTimeline", "read_trace"]

#: From and to, in milliseconds since the window began.
Span: TypeAlias = tuple[float, float]
_BUCKET = re.compile(r"^(?P<plan>.*)/bucket (?P<number>\d+)$")
_STEPS = 3


@dataclass(frozen=True)
class RankSteps:
    """The activity of one rank in the window.

    Attributes:
        rank: which.
        buckets: (number of the bucket, from, to): on the wire, or in shared memory.
        waits: in which TensorFlow had nothing to do but wait for gradients.
    """

    rank: int
    buckets: tuple[tuple[int, float, float], ...]
    waits: tuple[Span, ...]


@dataclass(frozen=True)
class StepTimeline:
    """A window of whole steps. ``length`` is in milliseconds."""

    length: float
    steps: int
    ranks: tuple[RankSteps, ...]

    def waited(self, one: RankSteps) -> float:
        """Milliseconds of the window in which a rank waited."""
        return sum(end - begin for begin, end in _union(one.waits))

    def communicated(self, one: RankSteps) -> float:
        """Milliseconds of the window in which a bucket of a rank was under way."""
        return sum(end - begin for begin, end in _union((begin, end) for _, begin, end in one.buckets))

    def hidden(self, one: RankSteps) -> float | None:
        """The part of the communication during which TensorFlow had something to compute; None without any."""
        whole = self.communicated(one)
        waits = _union(one.waits)
        buckets = _union((begin, end) for _, begin, end in one.buckets)
        open_ = sum(max(0.0, min(e, end) - max(b, begin)) for b, e in waits for begin, end in buckets)
        return (whole - open_) / whole if whole else None


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def read_trace(document: Mapping[str, Any], steps: int = _STEPS) -> StepTimeline | None:
    """The last whole steps of a trace that ``tfcollective run --timeline`` wrote, but for the very last one; None when
    it has not so many. A step ends where the last bucket of its plan ends on the last rank."""
    events = [event for event in document.get("traceEvents", ()) if event.get("ph") == "X"]
    ends = _step_ends(events)
    if len(ends) < steps + 2:
        return None
    begin, end = ends[-steps - 2], ends[-2]
    ranks = sorted({event["pid"] for event in events})
    found = tuple(_of_rank([event for event in events if event["pid"] == rank], rank, begin, end) for rank in ranks)
    return StepTimeline((end - begin) / 1e3, steps, found)


def _step_ends(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns when each step's last bucket had ended on all ranks, in microseconds of the trace."""
    buckets = [(event, match) for event in events if event["cat"] != WAIT and (match := _BUCKET.match(event["name"]))]
    if not buckets:
        return []
    # The plan with the most events is that of training; its highest bucket ends a step.
    plans = [match["plan"] for _, match in buckets]
    plan = max(set(plans), key=plans.count)
    last = max(int(match["number"]) for _, match in buckets if match["plan"] == plan)
    ends: dict[int, float] = {}
    for event, match in buckets:
        if match["plan"] == plan and int(match["number"]) == last:
            sequence = event["args"]["sequence"]
            ends[sequence] = max(ends.get(sequence, 0.0), event["ts"] + event["dur"])
    return sorted(ends.values())


def _of_rank(events: Sequence[Mapping[str, Any]], rank: int, begin: float, end: float) -> RankSteps:
    buckets, waits = [], []
    for event in events:
        left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
        match = _BUCKET.match(event["name"])
        if left >= right or match is None:
            continue
        span = ((left - begin) / 1e3, (right - begin) / 1e3)
        if event["cat"] == WAIT:
            waits.append(span)
        else:
            buckets.append((int(match["number"]), *span))
    return RankSteps(rank, tuple(sorted(buckets, key=lambda bucket: bucket[1])), tuple(sorted(waits)))
