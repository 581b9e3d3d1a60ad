"""Runs the chaos benchmark: the job undisturbed, disturbed, and undisturbed again; then judges."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev

import numpy as np

from tfcollective._base.codec import to_document
from tfcollective_bench.chaos import model
from tfcollective_bench.chaos.faults import schedule
from tfcollective_bench.chaos.job import Usage, WatchedJob, WentWrong
from tfcollective_bench.chaos.options import ChaosOptions
from tfcollective_bench.chaos.progress import (
    Outcome,
    Progress,
    Strike,
    goodput,
    outcomes,
    steps_per_second,
    stood_still,
)
from tfcollective_bench.chaos.strikes import Striker
from tfcollective_bench.hardware import probe_hardware, probe_versions
from tfcollective_bench.model import Cell, Report, RunnerState, RunnerStatus, Sample

__all__ = ["RUNNER", "Check", "Comparison", "checks", "compare", "curve_places", "leaks", "run_chaos"]

RUNNER = "ours"
_GOODPUT = 0.9
_SPREADS = 3.0  # of the losses with other seeds
_ROUNDING = 1e-9  # relative, of weights that were summed in another order
_DESCRIPTORS, _THREADS = 16, 8  # more than at its beginning: a process of the job leaks
_CURVE_POINTS = 60
_WAIT_S = 120.0  # until there are enough ranks for a fault
_SETTLED_S = 20.0  # a process has opened all that it needs

Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """A requirement: the value found, the value required, and whether it is met."""

    what: str
    found: str
    must: str
    passed: bool


@dataclass(frozen=True)
class Comparison:
    """The result of the disturbed job, compared with what it should be.

    Attributes:
        difference: of its weights from those of the same steps in one process, relative; of the load 1 if it differs.
        loss: at its end.
        references: the losses of undisturbed runs of as many steps with other data.
        steps: after how many the curve has values.
        curve: its losses there.
        band: the smallest and the largest of the undisturbed runs there.
    """

    difference: float
    loss: float
    references: tuple[float, ...]
    steps: tuple[int, ...]
    curve: tuple[float, ...]
    band: tuple[tuple[float, float], ...]

    @property
    def spreads(self) -> float:
        """The distance of this loss from the undisturbed ones, in their standard deviations."""
        return (self.loss - mean(self.references)) / stdev(self.references)


@dataclass
class _Run:
    """The results of one job."""

    progress: Progress
    usage: list[Usage]
    strikes: list[Strike]
    problem: str = ""
    stacks: str = ""
    left: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    result: Mapping[str, object] | None = None


def run_chaos(options: ChaosOptions, command: Sequence[str], say: Say) -> Report:
    """Measures and judges; :func:`checks` of the report says what holds.

    Args:
        command: as typed, for the report.
        say: takes what happens, for people.
    """
    hardware, started = probe_hardware(), time.time()
    say(f"undisturbed for {options.calm_seconds:g} s")
    before = _run(options, options.seed + 1, options.calm_seconds, say)
    say(f"disturbed for {options.seconds:g} s, seed {options.seed}")
    disturbed = _run(options, options.seed, options.seconds, say, faults=True)
    say(f"undisturbed for {options.calm_seconds:g} s")
    after = _run(options, options.seed + 2, options.calm_seconds, say)
    say("the same steps in one process, and with other data")
    compared = compare(options, disturbed.progress.counted, disturbed.result)
    found = _checks(before, disturbed, after, compared)
    for check in found:
        say(f"{'ok  ' if check.passed else 'MISS'} {check.what}: {check.found} ({check.must})")
    problems = [run.problem for run in (before, disturbed, after) if run.problem]
    samples = tuple(_samples(options, before, disturbed, after))
    return Report(
        title="Chaos",
        command=tuple(command),
        hardware=hardware,
        versions=probe_versions(),
        settings=to_document(options),
        samples=samples,
        statuses=(RunnerStatus(RUNNER, RunnerState.FAILED if problems else RunnerState.RAN, "; ".join(problems)),),
        started=started,
        finished=time.time(),
        notes=(f"seed {options.seed}",),
        attachments=_attachments(disturbed, compared, found),
    )


def checks(report: Report) -> list[Check]:
    """Returns the checks that a report contains."""
    return [Check(**one) for one in report.attachments["checks"]]


def _run(options: ChaosOptions, seed: int, seconds: float, say: Say, *, faults: bool = False) -> _Run:
    job = WatchedJob(options.ranks, seed, options.step_ms, options.framework, options.hang_s)
    run = _Run(job.progress, job.usage, [])
    with job:
        try:
            job.until(lambda: job.progress.steps > 0, float("inf"))
            began = job.progress.completions[0]
            if faults:
                _disturb(job, options, began, run.strikes, say)
            job.pause(began + seconds - time.monotonic())
            code = job.finish()
            run.problem = f"the job ended with code {code}" if code else ""
        except WentWrong as error:
            run.problem = str(error)
            say(f"it went wrong: {error}")
            run.stacks = job.stacks()
        else:
            run.left = tuple(job.left_behind())
    run.changes = job.changes()
    result = job.directory / "result.json"
    run.result = json.loads(result.read_text("utf-8")) if result.exists() else None
    if options.keep or run.problem or run.result is None:
        if run.result is None:
            run.problem = run.problem or "no rank has left a result"
        run.stacks = run.stacks or (job.output_tail() if run.problem else "")
        (job.directory / "stacks").write_text(run.stacks, "utf-8")
        say(f"what is known of it is in {job.directory}")
    else:
        shutil.rmtree(job.directory)
    return run


def _disturb(job: WatchedJob, options: ChaosOptions, began: float, strikes: list[Strike], say: Say) -> None:
    striker = Striker(job)
    for fault in schedule(options.seed, options.seconds, options.every_s, options.leaves):
        job.pause(began + fault.at - time.monotonic())
        left = began + options.seconds - time.monotonic()
        if left <= 0:
            break  # earlier ones took longer
        strike = striker.strike(fault, min(_WAIT_S, left))
        strikes.append(strike)
        whom = f"skipped, {strike.skipped}" if strike.skipped else ", ".join(strike.victims) or "all"
        when = strike.at - began
        say(f"{when:7.1f} s  {fault.kind.value}: {whom} (generation {strike.generation}, {strike.size} ranks)")


def compare(options: ChaosOptions, sizes: Sequence[int], result: Mapping[str, object] | None) -> Comparison | None:
    """The result, compared with the same steps in one process and with other data; None if there is none."""
    if result is None or not sizes:
        return None
    places = curve_places(len(sizes))
    same = model.replay(options.seed, sizes, places)
    calm = [options.ranks] * len(sizes)
    seeds = range(options.seed + 1, options.seed + 1 + options.references)
    others = [model.replay(seed, calm, places) for seed in seeds]
    weights = np.array(result["weights"], np.float64)
    difference = float(np.max(np.abs(weights - same.weights)) / np.max(np.abs(same.weights)))
    if result["load"] != [same.load, same.load] or result["step"] != len(sizes):
        difference = max(difference, 1.0)
    curves = list(zip(*(other.losses for other in others), strict=True))
    return Comparison(
        difference,
        model.loss(weights),
        tuple(other.losses[-1] for other in others),
        places,
        same.losses,
        tuple((min(values), max(values)) for values in curves),
    )


def curve_places(steps: int) -> tuple[int, ...]:
    """Returns the steps at which a curve of so many has values: at ever wider distances, and the last one."""
    places = {max(1, round(steps ** (number / _CURVE_POINTS))) for number in range(_CURVE_POINTS + 1)}
    return tuple(sorted(places | {steps}))


def leaks(usage: Iterable[Usage]) -> list[str]:
    """Returns the processes that hold more at their end than after their start, beyond the usual variation.

    A rank holds less while it is alone, so what counts is the most that a process held in its first seconds.
    """
    by_process: dict[str, list[Usage]] = {}
    for one in usage:
        by_process.setdefault(one.what, []).append(one)
    found = []
    for what, seen in by_process.items():
        settled = [one for one in seen if one.at >= seen[0].at + _SETTLED_S]
        if len(settled) < 2:
            continue
        early, last = [*(one for one in seen if one not in settled), settled[0]], settled[-1]
        descriptors, threads = max(one.descriptors for one in early), max(one.threads for one in early)
        if last.descriptors - descriptors > _DESCRIPTORS or last.threads - threads > _THREADS:
            found.append(
                f"{what}: {descriptors} to {last.descriptors} descriptors, {threads} to {last.threads} threads"
            )
    return found


def _checks(before: _Run, disturbed: _Run, after: _Run, compared: Comparison | None) -> list[Check]:
    runs = (before, disturbed, after)
    problems = [run.problem for run in runs if run.problem]
    left = [one for run in runs for one in run.left]
    leaking = leaks(disturbed.usage)
    steps = goodput(disturbed.progress, [before.progress, after.progress])
    found = [
        Check("the jobs", "; ".join(problems) or "ended well", "no hang, no end too soon", not problems),
        Check("goodput", f"{steps:.1%}", f"at least {_GOODPUT:.0%}", steps >= _GOODPUT),
        Check("left behind", ", ".join(left) or "nothing", "no process, file or shared memory", not left),
        Check("held by processes that live on", "; ".join(leaking) or "as much as before", "no more", not leaking),
    ]
    if compared is not None:
        spreads = compared.spreads
        found += [
            Check(
                "weights",
                f"differ by {compared.difference:.1g}",
                f"those of the same steps in one process, to {_ROUNDING:g}",
                compared.difference <= _ROUNDING,
            ),
            Check(
                "loss",
                f"{compared.loss:.6f}, {spreads:+.1f} standard deviations",
                f"within {_SPREADS:g} of {len(compared.references)} undisturbed runs ({mean(compared.references):.6f})",
                abs(spreads) <= _SPREADS,
            ),
        ]
    return found


def _samples(options: ChaosOptions, before: _Run, disturbed: _Run, after: _Run) -> Iterable[Sample]:
    row: dict[str, Cell] = {"ranks": options.ranks}
    for number, (name, run) in enumerate((("undisturbed", before), ("disturbed", disturbed), ("undisturbed", after))):
        if run.progress.steps:
            yield Sample(RUNNER, {**row, "run": name}, "rate", "steps/s", (steps_per_second(run.progress),), number)
    if disturbed.progress.steps:
        progress = disturbed.progress
        share = goodput(progress, [before.progress, after.progress])
        for metric, value in (
            ("goodput", share),
            ("stood still", stood_still(progress)),
            ("ranks on average", mean(progress.counted)),
            ("steps done again", float(progress.again)),
        ):
            yield Sample(RUNNER, row, metric, "", (value,), 1)
        for outcome in outcomes(disturbed.strikes, disturbed.progress):
            kind: dict[str, Cell] = {**row, "fault": outcome.strike.kind}
            yield Sample(RUNNER, kind, "still", "s", (outcome.still,), 1)
            if outcome.whole is not None:
                yield Sample(RUNNER, kind, "whole", "s", (outcome.whole,), 1)


def _attachments(run: _Run, compared: Comparison | None, found: Sequence[Check]) -> dict[str, object]:
    progress = run.progress
    begin = progress.completions[0] if progress.steps else 0.0
    results = outcomes(run.strikes, progress) if progress.steps else []
    return {
        "checks": [asdict(check) for check in found],
        "faults": [_fault_row(outcome, begin) for outcome in results],
        "skipped": [{"number": one.number, "kind": one.kind, "why": one.skipped} for one in run.strikes if one.skipped],
        "worlds": [
            [round(at - begin, 3), progress.sizes[generation]]
            for generation, at in sorted(progress.first_steps.items())
        ],
        "steps": _thinned([at - begin for at in progress.completions]),
        "loss": None if compared is None else asdict(compared),
        "usage": [asdict(one) | {"at": round(one.at - begin, 1)} for one in run.usage],
        "changes": list(run.changes),
        "stacks": run.stacks,
    }


def _fault_row(outcome: Outcome, begin: float) -> dict[str, object]:
    strike = outcome.strike
    return {
        "number": strike.number,
        "kind": strike.kind,
        "at": round(strike.at - begin, 3),
        "victims": list(strike.victims),
        "ranks": strike.size,
        "generation": strike.generation,
        "still": round(outcome.still, 4),
        "whole": None if outcome.whole is None else round(outcome.whole, 3),
    }


def _thinned(times: Sequence[float], most: int = 2000) -> list[list[float]]:
    """(seconds, steps until then), at most about so many."""
    every = max(1, len(times) // most)
    return [[round(at, 3), number + 1] for number, at in enumerate(times) if number % every == 0]
