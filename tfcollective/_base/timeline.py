"""The timeline of a job's ranks: one clock, Chrome's trace format, and who waited for whom. Pure, except
:func:`check_writable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tfcollective._base.errors import ConfigError

#: ``Interval.collective`` of a time in which TensorFlow had nothing to do but wait for gradients.
WAIT = "wait"
_WAIT_LANE = 0


def check_writable(path: Path) -> None:
    """Raises ConfigError when a timeline cannot be written to this file, which is there afterwards."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigError(f"the timeline cannot be written to {path}: {error.strerror}") from error


class Interval(NamedTuple):
    """An operation of one rank, or a wait. Times are nanoseconds of one monotonic clock.

    A tuple, which travels as a short list: there are many.

    Attributes:
        collective: its name, such as "allreduce", or :data:`WAIT`.
        channel: operations of all ranks with equal `channel` ...
        sequence: ... and `sequence` are one collective.
        nbytes: bytes of this rank's input.
        submitted: when the caller handed it over.
        began: when its turn came.
        ended: when its result was there.
        name: the operation's.
    """

    collective: str
    channel: int
    sequence: int
    nbytes: int
    submitted: int
    began: int
    ended: int
    name: str


@dataclass(frozen=True)
class RankTimeline:
    """The record of one rank; ``dropped`` counts older intervals that were not kept."""

    rank: int
    intervals: tuple[Interval, ...]
    dropped: int = 0

    def shifted(self, nanoseconds: int) -> RankTimeline:
        """The same on a clock that is so far ahead."""
        moved = (
            i._replace(submitted=i.submitted + nanoseconds, began=i.began + nanoseconds, ended=i.ended + nanoseconds)
            for i in self.intervals
        )
        return replace(self, intervals=tuple(moved))


@dataclass(frozen=True)
class RankSummary:
    """A rank's row of the straggler table. Times are seconds.

    Attributes:
        operations: collectives that all ranks recorded.
        communicating: between the turn of an operation and its result.
        waiting: the part of it in which the last rank had not come yet.
        last: how often this rank was the last to come.
        lateness: median time by which it came after the first, over the operations to which it came last.
        blocked: in which TensorFlow waited for gradients.
        hidden: share of the communication that TensorFlow did not wait for; None where no bucket ran.
    """

    rank: int
    operations: int
    communicating: float
    waiting: float
    last: int
    lateness: float
    blocked: float
    hidden: float | None


def _collectives(timelines: Sequence[RankTimeline]) -> list[dict[int, Interval]]:
    """The operations that every rank recorded: rank -> its interval."""
    found: dict[tuple[int, int], dict[int, Interval]] = {}
    for timeline in timelines:
        for interval in timeline.intervals:
            if interval.collective != WAIT:
                found.setdefault((interval.channel, interval.sequence), {})[timeline.rank] = interval
    return [members for members in found.values() if len(members) == len(timelines)]


def summarise(timelines: Sequence[RankTimeline]) -> list[RankSummary]:
    """Returns one row for each rank, in rank order."""
    collectives = [(members, *_first_and_last(members)) for members in _collectives(timelines)]
    return [_summary(timeline, collectives) for timeline in sorted(timelines, key=lambda t: t.rank)]


def _first_and_last(members: Mapping[int, Interval]) -> tuple[int, int]:
    """Returns the times at which the first and the last rank came to a collective."""
    began = [member.began for member in members.values()]
    return min(began), max(began)


def _summary(timeline: RankTimeline, collectives: Sequence[tuple[Mapping[int, Interval], int, int]]) -> RankSummary:
    rank = timeline.rank
    communicating = waiting = 0
    late: list[int] = []
    for members, first, last in collectives:
        mine = members[rank]
        communicating += mine.ended - mine.began
        waiting += min(last, mine.ended) - mine.began
        if len(members) > 1 and mine.began == last:
            late.append(last - first)
    blocked = sum(i.ended - i.began for i in timeline.intervals if i.collective == WAIT)
    buckets = sum(i.ended - i.began for i in timeline.intervals if "/bucket " in i.name and i.collective != WAIT)
    return RankSummary(
        rank=rank,
        operations=len(collectives),
        communicating=communicating * 1e-9,
        waiting=waiting * 1e-9,
        last=len(late),
        lateness=median(late) * 1e-9 if late else 0.0,
        blocked=blocked * 1e-9,
        hidden=max(0.0, 1.0 - blocked / buckets) if buckets else None,
    )


def summary_text(rows: Iterable[RankSummary]) -> str:
    """The straggler table as lines of text."""
    lines = ["rank  operations  communicating  waiting for others  came last  late by (median)  blocked  hidden"]
    for row in rows:
        hidden = "-" if row.hidden is None else f"{row.hidden:.0%}"
        lines.append(
            f"{row.rank:>4}  {row.operations:>10}  {row.communicating:>11.3f} s  {row.waiting:>16.3f} s  "
            f"{row.last:>9}  {row.lateness * 1e3:>13.3f} ms  {row.blocked:>5.2f} s  {hidden:>6}"
        )
    return "\n".join(lines)


def trace_document(timelines: Sequence[RankTimeline]) -> dict[str, object]:
    """A trace in Chrome's JSON format (for Perfetto or chrome://tracing): a process a rank, a lane a channel.

    Every operation says how long it queued, who came last and how long this rank waited for it.
    """
    origin = min((i.submitted for t in timelines for i in t.intervals), default=0)
    last = _last_to_come(timelines)
    events: list[dict[str, object]] = []
    for timeline in sorted(timelines, key=lambda t: t.rank):
        events.extend(_names(timeline))
        events.extend(_event(timeline.rank, interval, origin, last) for interval in timeline.intervals)
    dropped = {str(t.rank): t.dropped for t in timelines if t.dropped}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped intervals by rank": dropped}}


def _last_to_come(timelines: Sequence[RankTimeline]) -> dict[tuple[int, int], tuple[int, int]]:
    """(channel, sequence) -> (the rank that came last, when)."""
    last = {}
    for members in _collectives(timelines):
        rank, interval = max(members.items(), key=lambda item: item[1].began)
        last[(interval.channel, interval.sequence)] = (rank, interval.began)
    return last


def _names(timeline: RankTimeline) -> Iterable[dict[str, object]]:
    rank = timeline.rank
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    lanes = {_lane(interval) for interval in timeline.intervals}
    for lane in sorted(lanes):
        name = "TensorFlow waits" if lane == _WAIT_LANE else f"channel {lane - 1}"
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": name}}


def _lane(interval: Interval) -> int:
    return _WAIT_LANE if interval.collective == WAIT else interval.channel + 1


def _event(
    rank: int, interval: Interval, origin: int, last: Mapping[tuple[int, int], tuple[int, int]]
) -> dict[str, object]:
    event: dict[str, object] = {
        "ph": "X",
        "name": interval.name,
        "cat": interval.collective,
        "pid": rank,
        "tid": _lane(interval),
        "ts": (interval.began - origin) / 1e3,
        "dur": (interval.ended - interval.began) / 1e3,
    }
    if interval.collective == WAIT:
        return event
    queued = (interval.began - interval.submitted) / 1e3
    args: dict[str, object] = {"bytes": interval.nbytes, "sequence": interval.sequence, "queued_us": queued}
    came_last = last.get((interval.channel, interval.sequence))
    if came_last is not None:
        args["last_rank"] = came_last[0]
        args["waited_us"] = max(0, min(came_last[1], interval.ended) - interval.began) / 1e3
    return {**event, "args": args}
