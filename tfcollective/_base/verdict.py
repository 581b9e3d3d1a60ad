"""Judges a job by the ends of its tasks: what has failed, which failure came first, and what becomes of the job. Pure.

Everything that decides about a failure asks here: an agent about one process, the coordinator about one rank, the
launcher about the job while it runs, at its end, and before it starts it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.failures import ErrorKind, ExitReason, ExitRecord

# A shell's "cannot be run" and "not found", and what programs return that do not understand their arguments.
_USAGE_CODES = (2, ExitCode.USAGE, 126, 127)
_NEVER_NEEDED = (ExitReason.NOT_STARTED, ExitReason.DISMISSED)


class Decision(str, Enum):
    """The fate of a job."""

    CONTINUE = "continue"  # it runs, and needs none of those that have ended
    COMPLETE = "complete"  # it has ended well
    RESTART = "restart"  # it has failed, and is started again
    FAIL = "fail"  # it has failed; end whatever still runs


class Obstacle(str, Enum):
    """The reason why a job that failed is not started again."""

    PERMANENT = "permanent"  # an error that comes again however often it is tried
    USAGE = "usage"  # the command cannot be run, or is not understood
    NEVER_BEGAN = "never began"  # it ended before any rank called init()


@dataclass(frozen=True)
class Rules:
    """The rules by which a job handles failures.

    Attributes:
        elastic: the other ranks continue when one is lost.
        outlasts_errors: in an elastic job also when that one ended by an error of its program (``--on-error replace``).
        restarts: how often the job may still be started again.
    """

    elastic: bool = False
    outlasts_errors: bool = False
    restarts: int = 0

    def outlasts(self, record: ExitRecord) -> bool:
        """True if this end alone does not fail the job. An error of the program does: another process in its place
        would raise it, too. What a process raises that is to leave costs its rank alone."""
        if not self.elastic:
            return not record.failed
        return self.outlasts_errors or record.leaving or not record.raised


@dataclass(frozen=True)
class Standing:
    """The standing of a job while its tasks end. Tasks are named as in :attr:`ExitRecord.task`.

    Attributes:
        first: the tasks of its first world.
        members: the tasks of its newest world; once rank 0 has completed the training only those that have, too: what
            the others missed, the state of rank 0 has.
        leavers: the tasks that left gracefully, while the others trained.
        met: True if any task has called ``init()``.
        broken: True if the tasks could not meet, or cannot meet again.
        ended: True if all agents have ended, so that no further record comes.
        node_lived_until: until when the first node that failed was known to work, on the clock of
            :attr:`ExitRecord.seen`; None: no node has failed.
    """

    first: Collection[str] = ()
    members: Collection[str] = ()
    leavers: Collection[str] = ()
    met: bool = True
    broken: bool = False
    ended: bool = False
    node_lived_until: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The meaning of the ends of a job's tasks.

    Attributes:
        decision: the fate of the job.
        ends: the ends that count, failures or not, in the order of the records.
        survived: the failures that an elastic job has outlasted.
        standing: where the job stood.
    """

    decision: Decision
    ends: tuple[ExitRecord, ...]
    survived: tuple[ExitRecord, ...]
    standing: Standing

    @property
    def first(self) -> ExitRecord | None:
        """The failure of a task that came first; see :func:`first_cause`."""
        return first_cause(self.ends)

    @property
    def cause(self) -> ExitRecord | None:
        """The first failure; None if there is none, or if the loss of a node came before it.

        A node that is lost, or does not end in time, after a rank has reported a failure of its own is not the cause,
        even where nothing more is heard of the node's ranks. One whose last heartbeat is older than that report is.
        """
        first, lived = self.first, self.standing.node_lived_until
        if first is None or lived is None:
            return first
        return first if not first.consequence and first.seen <= lived else None

    @property
    def missing(self) -> ExitRecord | None:
        """The rank that others needed and that has no failure of its own; None if there is none. If the first failure
        is a consequence, it left the world; else it did not come to a collective in which the others waited."""
        first = self.first
        if first is None:
            return None
        blamed = _blamed(self.ends) if first.consequence else {first.awaited}
        absent = [one for one in self.ends if one.rank in blamed and not one.raised and (one.stopped or not one.failed)]
        return min(absent, key=_arrival, default=None)

    @property
    def obstacle(self) -> Obstacle | None:
        """Returns why the job would fail again, or must not be started again; None when it may be started."""
        cause = self.cause
        if cause is None:
            return None
        if cause.exception is not None:
            return Obstacle.PERMANENT if cause.exception.kind is ErrorKind.PERMANENT else None
        if cause.signal is not None:
            return None
        if cause.exit_code in _USAGE_CODES:
            return Obstacle.USAGE
        return None if self.standing.met else Obstacle.NEVER_BEGAN


def verdict(records: Sequence[ExitRecord], standing: Standing, rules: Rules) -> Verdict:
    """Judges a job by the ends of its ranks so far. Auxiliary tasks are none of them: training does not need them."""
    ends = [one for one in records if not rules.elastic or _counts(one, standing)]
    errors = {one.task for one in ends if not rules.outlasts(one)}
    fails = bool(errors) or standing.broken or (rules.elastic and _fails_everywhere(ends, standing))
    survived = _survived(ends, standing, errors, fails=fails) if rules.elastic else []
    outlasted = {one.task for one in survived}
    ends = [one for one in ends if one.task not in outlasted]
    if not standing.ended:
        return Verdict(Decision.FAIL if fails else Decision.CONTINUE, tuple(ends), tuple(survived), standing)
    failed = fails or standing.node_lived_until is not None or any(one.failed for one in ends)
    judged = Verdict(Decision.FAIL if failed else Decision.COMPLETE, tuple(ends), tuple(survived), standing)
    again = failed and rules.restarts > 0 and judged.obstacle is None
    return replace(judged, decision=Decision.RESTART) if again else judged


def _counts(record: ExitRecord, standing: Standing) -> bool:
    """True if an end counts: not that of a task that left gracefully, whatever ended its process afterwards, nor that
    of a task that was never needed.
    """
    if record.reason in _NEVER_NEEDED:
        return False
    return not record.failed or record.raised or record.task not in standing.leavers


def _survived(
    ends: Sequence[ExitRecord], standing: Standing, errors: Collection[str], *, fails: bool
) -> list[ExitRecord]:
    """Returns the failures that an elastic job has outlasted: all of them while it continues; none if it has failed,
    since they may be the cause, unless ``errors`` of the program have ended it and are the cause.
    """
    failed = [one for one in ends if one.failed]
    lost = [one for one in failed if one.task not in standing.members]
    if errors:
        return [one for one in lost if not one.stopped and one.task not in errors]
    if not fails and not standing.ended:
        return failed
    members = any(one.task in standing.members for one in ends)
    return lost if members and not fails and lost == failed else []


def _fails_everywhere(ends: Iterable[ExitRecord], standing: Standing) -> bool:
    """True if all tasks of the first world have given up, and no other one waits for a world either. A world may do
    without a host on which the program fails."""
    if standing.met:
        return False
    gave_up = {one.task for one in ends if one.exit_code and not one.stopped and not one.leaving}
    return bool(standing.first) and gave_up.issuperset(standing.first)


def first_cause(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """The failure that brought about the others; None if nothing failed.

    A failure that is no consequence of another comes before those that are, and one that was stopped after those that
    were not. Of several such, one that other tasks blame comes before one that none of them has met. What is left is a
    matter of time: the clock of each host orders the failures of that host, and never those of two hosts, which are
    ordered as their first reports have arrived. Equal times are ordered by rank.
    """
    failed = [record for record in records if record.failed]
    candidates = [record for record in failed if not record.consequence]
    candidates = candidates or [record for record in failed if not record.stopped] or failed
    blamed = _blamed(failed)
    arrived: dict[str, float] = {}
    for record in candidates:
        arrived[record.node] = min(record.seen, arrived.get(record.node, record.seen))

    def place(record: ExitRecord) -> tuple[bool, float, str, float, int, str]:
        return record.rank not in blamed, arrived[record.node], record.node, record.time, record.rank, record.task

    return min(candidates, key=place, default=None)


def first_to_end(records: Sequence[ExitRecord], orderly: Collection[str]) -> ExitRecord:
    """Returns the end that the other members met first: :func:`first_cause`, unless all failures are consequences and
    one of the tasks ended in an ``orderly`` way, without failing or after it had left. ``records`` has at least one."""
    cause = first_cause(records)
    if cause is None or cause.consequence:
        return next((one for one in records if one.task in orderly), cause or records[0])
    return cause


def in_order_of_arrival(records: Iterable[ExitRecord]) -> list[ExitRecord]:
    """The failures among the records, as the coordinator has heard of them."""
    return sorted((record for record in records if record.failed), key=_arrival)


def _arrival(record: ExitRecord) -> tuple[float, float, int, str]:
    return record.seen, record.time, record.rank, record.task


def _blamed(records: Iterable[ExitRecord]) -> set[int | None]:
    """The ranks at the ends of the chains of blame: one that itself only blames another is none of them."""
    by_rank = {record.rank: record for record in in_order_of_arrival(records)}  # of a rank's tasks the newest
    ends: set[int | None] = set()
    for record in by_rank.values():
        met: set[int] = set()
        at: ExitRecord | None = record
        while at is not None and at.rank not in met and at.blames is not None:
            met.add(at.rank)
            end = at.blames
            at = by_rank.get(end)
            if at is None or at.blames is None:
                ends.add(end)
    return ends
