"""The table "work | against | must | aim | measured | verdict": pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten

from tfcollective_bench.model import RunnerState, RunnerStatus, Sample
from tfcollective_bench.report.table import AIMED, MISS, NOT_MEASURED, PASS, Table
from tfcollective_bench.targets import TARGETS, Outcome, Target, evaluate

__all__ = ["missed", "outcomes", "targets_report"]

_LONGEST_REASON = 200
_COLUMNS = ("work", "against", "must", "aim", "measured", "", "how")


def outcomes(
    samples: Sequence[Sample], targets: Sequence[Target] = TARGETS, statuses: Sequence[RunnerStatus] = ()
) -> list[Outcome]:
    """Returns the outcome of every target; where one was not measured, that of its runners."""
    return [_explained(evaluate(target, samples), statuses) for target in targets]


def _explained(outcome: Outcome, statuses: Sequence[RunnerStatus]) -> Outcome:
    if outcome.ratio is not None:
        return outcome
    sides = (outcome.target.ours, outcome.target.theirs)
    runners = [runner for side in sides if side is not None for runner in side.runners]
    reasons = [
        f"{status.runner} {status.state.value}: {shorten(status.detail, _LONGEST_REASON, placeholder=' ...')}"
        for status in statuses
        if status.runner in runners and status.state is not RunnerState.RAN
    ]
    return replace(outcome, where="; ".join([outcome.where, *reasons]))


def missed(found: Sequence[Outcome]) -> int:
    """Returns the number of musts missed; what was not measured does not count."""
    return sum(outcome.met is False for outcome in found)


def targets_report(found: Sequence[Outcome], title: str = "What it must reach") -> Table:
    """Returns a table with one row for every outcome, in words."""
    counts = f"{sum(o.met is True for o in found)} pass, {missed(found)} miss"
    note = f"{counts}, {sum(o.ratio is None for o in found)} not measured. Spread: p10 to p90 over the rounds."
    return Table(title, _COLUMNS, tuple(_row(outcome) for outcome in found), frozenset(("must", "aim")), note)


def _row(outcome: Outcome) -> tuple[str, ...]:
    target = outcome.target
    aim = f"+ {target.floor_us:g} us" if target.floor_us is not None else _number(target, target.aim)
    how = ", ".join(part for part in (outcome.sides, outcome.where) if part)
    return (target.work, target.against, _number(target, target.must), aim, _measured(outcome), _verdict(outcome), how)


def _number(target: Target, ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio * 100:.3g} %" if target.percent else f"{ratio:.3g}x"


def _measured(outcome: Outcome) -> str:
    if outcome.ratio is None:
        return "-"
    low, middle, high = outcome.ratio.p10, outcome.ratio.median, outcome.ratio.p90
    if outcome.target.floor_us is not None:
        return f"+ {middle:.1f} us ({low:.1f} to {high:.1f})"
    if outcome.target.percent:
        return f"{middle * 100:.1f} % ({low * 100:.1f} to {high * 100:.1f})"
    return f"{middle:.2f}x ({low:.2f} to {high:.2f})"


def _verdict(outcome: Outcome) -> str:
    if outcome.ratio is None:
        return NOT_MEASURED
    if outcome.target.must is None:
        return PASS if outcome.aimed else "aim not reached"
    if not outcome.met:
        return MISS
    return AIMED if outcome.aimed else PASS
