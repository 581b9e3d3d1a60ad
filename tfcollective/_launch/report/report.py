"""The report of a job's end, and the exit code: pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode, signal_name
from tfcollective._base.failures import ExitReason, ExitRecord
from tfcollective._base.tasks import NO_RANK
from tfcollective._base.verdict import in_order_of_arrival
from tfcollective._control.snapshot import WorldChange
from tfcollective._launch.launcher import AuxiliaryTaskEnd, JobOutcome

_TRACEBACK = "Traceback (most recent call last):"
# The report is to fit on one screen: what it leaves out is in the output above it, and in the files of --log-dir.
_MOST_OTHERS = 8
_MOST_SAID = 100
_MOST_HEADLINE = 300
_TAIL_BESIDE_TRACEBACK = 5


def exit_code(outcome: JobOutcome) -> int:
    """0, the first failed rank's code (128 + n for signal n), or the code of what kept the job from running."""
    if outcome.stopped_by is not None:
        return SIGNAL_BASE + outcome.stopped_by
    if outcome.reported is not None:
        return outcome.reported
    if outcome.start_failure is not None and outcome.start_failure.timed_out:
        return ExitCode.NOT_STARTED
    if outcome.cause is not None:
        return ExitCode.LOST if outcome.cause.reason is ExitReason.LOST else outcome.cause.status
    if outcome.agent_failure is not None:
        return ExitCode.LOST if outcome.host_lost else ExitCode.INTERNAL
    if outcome.start_failure is not None:  # all ranks have left gracefully, before the training was complete
        return ExitCode.LOST
    return ExitCode.OK


def render(outcome: JobOutcome, emphasise: Callable[[str], str] = str) -> str:
    """The report: empty when there is nothing to tell. ``emphasise`` is called with the line that names the first cause
    of a failure, for a terminal that shows it in colour."""
    return "\n".join(_lines(outcome, emphasise))


def warning(outcome: JobOutcome) -> str | None:
    """Returns one line for a job in which no process used tfcollective, else None."""
    if outcome.initialised or outcome.stopped_by is not None or outcome.agent_failure is not None:
        return None
    if exit_code(outcome) != 0:  # it is no cause, and may have been about to come
        return "note: no rank had called tfcollective.init() by then"
    return "warning: no rank called tfcollective.init(): they were apart unless JAX or torch connected them"


def headline(outcome: JobOutcome) -> str:
    """Returns why a job failed, in one line."""
    cause = outcome.cause
    if cause is None:
        return " ".join(str(outcome.agent_failure or outcome.start_failure or "no reason is known").split())
    missing = _missing(outcome)
    return describe_end(cause, outcome.places) if missing is None else missing[1]


def describe_end(record: ExitRecord, places: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns which task has ended and how, in one line; ``places`` as in :attr:`JobOutcome.places`."""
    return f"{_who(record, places)} {_end(record, _MOST_HEADLINE)}"


def _lines(outcome: JobOutcome, emphasise: Callable[[str], str]) -> Iterator[str]:
    yield from _restart_lines(outcome)
    if outcome.stopped_by is not None:
        yield f"stopped by {signal_name(outcome.stopped_by)}"
        earlier = [one for one in in_order_of_arrival(outcome.exits) if one.raised and not one.stopped]
        yield from (f"  before that, {_who(one, outcome.places)} {_how(one)}" for one in earlier[:_MOST_OTHERS])
        return
    host_is_cause = outcome.agent_failure is not None and outcome.cause is None
    if host_is_cause:
        yield emphasise(str(outcome.agent_failure))
    if outcome.start_failure is not None:
        yield emphasise(str(outcome.start_failure))
    yield from _failure_lines(outcome, emphasise)
    if outcome.agent_failure is not None and not host_is_cause:
        yield f"  then {outcome.agent_failure}"
    yield from (
        f"{_who(record, outcome.places)} {_how(record)}: the others continued without it"
        for record in in_order_of_arrival(outcome.survived)
    )
    if outcome.changes and not outcome.survived:  # ranks have joined or left: what follows has no line of its own above
        yield f"the world has changed {_times(len(outcome.changes))}:"
    yield from (f"  {describe_change(change)}" for change in outcome.changes)
    for auxiliary_task in outcome.auxiliary_tasks:
        yield from _auxiliary_task_lines(auxiliary_task, outcome)


def describe_change(change: WorldChange) -> str:
    """Returns the change between two worlds, in a line."""
    gone = [f"without {', '.join(map(str, change.lost))}"] if change.lost else []
    new = [f"with {', '.join(map(str, change.joined))}"] if change.joined else []
    what = ", ".join([describe_size(change.size), *gone, *new])
    parts = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in change.phases.items())
    line = f"generation {change.generation}: {what}, after {change.seconds:.2f} s ({parts})"
    return f"{line}: {change.cause}" if change.cause else line


def describe_size(size: int) -> str:
    """Returns the number of ranks of a world, in words."""
    return "1 rank" if size == 1 else f"{size} ranks"


def describe_restarts(what: str, count: int) -> Sequence[str]:
    """Returns how often something was started again: a line, or none if it was not."""
    return [f"the {what} was started again {_times(count)}"] if count else []


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _restart_lines(outcome: JobOutcome) -> Iterator[str]:
    if outcome.earlier:
        yield from (f"{line}:" for line in describe_restarts("job", len(outcome.earlier)))
        yield from (f"  {number}. because {cause}" for number, cause in enumerate(outcome.earlier, 1))
    if outcome.not_restarted:
        yield f"it was not started again: {outcome.not_restarted}"


def _auxiliary_task_lines(end: AuxiliaryTaskEnd, outcome: JobOutcome) -> Iterator[str]:
    """Yields the lines of an auxiliary task at the end: its figures or its address, and how it failed if it did. A task
    that was stopped although training succeeded was stopped from outside: by its platform, for example.
    """
    record = end.exit
    if record is None:
        yield _unreported(end)
        return
    if end.lost and record.stopped:
        yield _unreported(end)
    elif record.failed and (not record.stopped or exit_code(outcome) == 0):
        yield f"warning: {_who(record, outcome.places)} {record.how}; training did not need it"
        yield from _stderr_lines(record)
    said = describe_info(end.info)
    if said:
        yield f"{end.task}: {said}"


def _unreported(end: AuxiliaryTaskEnd) -> str:
    if end.lost:
        return f"warning: {end.task}: {end.lost}; training did not need it"
    return f"{end.task}: {'no agent has reported how it ended' if end.started else 'was not started'}"


def describe_info(info: Mapping[str, object]) -> str:
    """Returns what a task has published, in words; empty for nothing."""
    url = info.get("url")
    if isinstance(url, str):
        return url
    rate = info.get("steps_per_second")
    if isinstance(rate, float):
        return _describe_progress(info, rate)
    figures = info.get("figures")
    if not isinstance(figures, Mapping):
        return ""
    step, count = figures.get("last_training_step"), figures.get("nb_eval_steps")
    awake, mean = figures.get("awake_time_ratio"), figures.get("eval_step_mean_duration")
    words = [f"last training step {step}", f"{count} evaluation steps"]
    if isinstance(mean, float) and isinstance(awake, float):
        words += [f"{mean * 1000:.3g} ms a step", f"awake {awake:.0%} of its time"]
    metrics = info.get("metrics")
    if isinstance(metrics, Mapping):
        words += [
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in sorted(metrics.items())
            if isinstance(value, float | str)
        ]
    return ", ".join(words)


def _describe_progress(info: Mapping[str, object], rate: float) -> str:
    words = []
    for name, total in (("epoch", "epochs"), ("step", "steps")):
        if name in info:
            words.append(f"{name} {info[name]}" + (f" of {info[total]}" if total in info else ""))
    words.append(f"{rate:.3g} steps a second")
    loss = info.get("loss")
    if isinstance(loss, float):
        words.append(f"loss {loss:.4g}")
    return ", ".join(words)


def _failure_lines(outcome: JobOutcome, emphasise: Callable[[str], str]) -> Iterator[str]:
    """Yields the first cause with its output, then the other failures, a line each."""
    first = outcome.judge().first
    if first is None:
        return
    of_host = outcome.agent_failure is not None and outcome.cause is None  # which stands above
    missing = _missing(outcome)
    causes = [] if missing is None else [missing]
    causes.append((first, describe_end(first, outcome.places)))
    for number, (record, text) in enumerate(causes):
        yield f"  then {text}" if of_host or number else emphasise(f"the job failed: {text}")
        if record.hint:
            yield f"  hint: {record.hint}"
        yield from _stderr_lines(record)
    others = [record for record in in_order_of_arrival(outcome.exits) if record not in [cause for cause, _ in causes]]
    blamed = {record.rank for record, _ in causes}
    for record in others[:_MOST_OTHERS]:
        yield f"  then {_who(record, outcome.places)} {_how(record, blamed)}"
    if len(others) > _MOST_OTHERS:
        yield f"  then {len(others) - _MOST_OTHERS} more ranks ended, too"
    yield from (f"{'    ' if number else '  '}{line}" for number, line in enumerate(outcome.stalled))


def _missing(outcome: JobOutcome) -> tuple[ExitRecord, str] | None:
    """The rank that others needed and that has no failure of its own, and how it is called in the report; or None."""
    judged = outcome.judge()
    missing, needed = judged.missing, "while other ranks needed it"
    if missing is None or judged.first is None:
        return None
    if not judged.first.consequence:
        how = f"did not come to a collective in which other ranks waited{', and was stopped' if missing.failed else ''}"
    else:
        how = f"left {needed}, and was stopped" if missing.failed else f"{missing.how} {needed}"
    return missing, f"{_who(missing, outcome.places)} {how}"


def _stderr_lines(record: ExitRecord) -> Iterator[str]:
    said = record.exception
    traceback = () if said is None else tuple(said.traceback.rstrip().splitlines())
    tail = _without_traceback(record.stderr_tail, traceback)
    tail = tail[-_TAIL_BESIDE_TRACEBACK:] if traceback else tail
    if tail:
        yield "  the last lines of its stderr:"
        yield from (f"    {line}" for line in tail)
    if said is not None and traceback:
        yield "  its traceback:"
        yield from (f"    {line}" for line in (said.folded.splitlines() or traceback))


def _without_traceback(tail: tuple[str, ...], traceback: tuple[str, ...]) -> tuple[str, ...]:
    """The tail of stderr without the traceback that the interpreter has printed there: it is shown by itself."""
    last = next((line for line in reversed(traceback) if line in tail), None)  # the tail does not keep every line
    if last is None:
        return tail
    end = len(tail) - 1 - tail[::-1].index(last)
    begins = [place for place, line in enumerate(tail[:end]) if line == _TRACEBACK]
    chained = traceback.count(_TRACEBACK)  # one for each exception of a chain
    start = begins[-chained] if 0 < chained <= len(begins) else 0  # its first lines may have been cut off
    return tail[:start] + tail[end + 1 :]


def _who(record: ExitRecord, places: Mapping[str, str]) -> str:
    """Names the slot that failed, not its host: other ranks may have succeeded there."""
    place = f" on {places[record.task]}" if places.get(record.task) else ""
    if record.rank == NO_RANK:
        return f"{record.task} (pid {record.pid}{place})"
    return f"rank {record.rank} ({record.task}, pid {record.pid}{place})"


def _how(record: ExitRecord, blamed: Collection[int] = ()) -> str:
    """Returns the end of a task, in a line; ``blamed``: the ranks that the report begins with."""
    if record.blames in blamed:
        return "ended because of that"
    if record.stopped and not record.raised:
        return "was stopped"
    return _end(record, _MOST_SAID)


def _end(record: ExitRecord, most: int) -> str:
    """Returns the end of a task, and its exception in at most so many characters."""
    if record.exception is None:
        return record.how
    how = "was stopped" if record.consequence and record.signal is not None else record.how
    said = record.exception.in_short
    return f"{how} ({said if len(said) <= most else f'{said[:most]} ...'})"
