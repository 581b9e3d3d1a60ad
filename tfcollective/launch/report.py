"""What to tell people about a job's end, and the exit code: pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping

from tfcollective.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective.failures import ExitRecord, first_cause
from tfcollective.launch.launcher import JobOutcome

__all__ = ["exit_code", "render", "warning"]

_TRACEBACK = "Traceback (most recent call last):"


def exit_code(outcome: JobOutcome) -> int:
    """0, the first failed rank's code (128 + n for signal n), or the code of what kept the job from running."""
    if outcome.stopped_by is not None:
        return SIGNAL_BASE + outcome.stopped_by
    if outcome.start_failure is not None and outcome.start_failure.timed_out:
        return ExitCode.NOT_STARTED
    if outcome.agent_failure is not None:
        return ExitCode.LOST if outcome.host_lost else ExitCode.INTERNAL
    cause = first_cause(outcome.exits)
    return 0 if cause is None else cause.status


def render(outcome: JobOutcome) -> str:
    """The report: empty when there is nothing to tell."""
    return "\n".join(_lines(outcome))


def warning(outcome: JobOutcome) -> str | None:
    """One line for a job in which nobody used tfcollective, else None."""
    if outcome.initialised or outcome.stopped_by is not None or outcome.agent_failure is not None:
        return None
    if exit_code(outcome) != 0:  # it is no cause, and may have been about to come
        return "note: that was before any rank called tfcollective.init()"
    return "warning: no rank called tfcollective.init(): the processes ran independently of each other"


def _lines(outcome: JobOutcome) -> Iterator[str]:
    if outcome.stopped_by is not None:
        yield f"stopped by {signal.Signals(outcome.stopped_by).name}"
        return
    if outcome.agent_failure is not None:
        yield outcome.agent_failure
    if outcome.start_failure is not None:
        yield f"the ranks could not meet: {outcome.start_failure.message}"
    cause = first_cause(outcome.exits)
    if cause is not None:
        yield from _cause_lines(cause, outcome.places)
        others = [record for record in outcome.exits if record.failed and record is not cause]
        yield from (
            f"  then {_who(record, outcome.places)} {_how(record)}"
            for record in sorted(others, key=lambda one: one.time)
        )


def _cause_lines(record: ExitRecord, places: Mapping[str, str]) -> Iterator[str]:
    yield f"the job failed: {_who(record, places)} {record.how}"
    traceback = () if record.exception is None else tuple(record.exception.traceback.rstrip().splitlines())
    tail = _without_traceback(record.stderr_tail, traceback)
    if tail:
        yield "  the last lines of its stderr:"
        yield from (f"    {line}" for line in tail)
    if traceback:
        yield "  its traceback:"
        yield from (f"    {line}" for line in traceback)


def _without_traceback(tail: tuple[str, ...], traceback: tuple[str, ...]) -> tuple[str, ...]:
    """The tail of stderr without the traceback that the interpreter has printed there: it is shown by itself."""
    if not traceback or traceback[-1] not in tail:
        return tail
    end = tail.index(traceback[-1])
    begins = [place for place, line in enumerate(tail[:end]) if line == _TRACEBACK]
    chained = traceback.count(_TRACEBACK)  # one for each exception of a chain
    start = begins[-chained] if 0 < chained <= len(begins) else 0  # its first lines may have been cut off
    return tail[:start] + tail[end + 1 :]


def _who(record: ExitRecord, places: Mapping[str, str]) -> str:
    """It is a slot that failed, not its host: other ranks may have done well there."""
    place = f" on {places[record.task]}" if places.get(record.task) else ""
    return f"rank {record.rank} ({record.task}, pid {record.pid}{place})"


def _how(record: ExitRecord) -> str:
    if record.stopped:
        return "was stopped"
    if record.exception is None:
        return record.how
    first_line = record.exception.message.partition("\n")[0]
    return f"{record.how} ({record.exception.type}: {first_line})"
