"""The chaos report for people: tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfcollective_bench.chaos.faults import FaultKind
from tfcollective_bench.chaos.model import LEAST_LOSS
from tfcollective_bench.chaos.run import checks
from tfcollective_bench.model import Report, select
from tfcollective_bench.report import Plot, Section, Table, plots_available
from tfcollective_bench.report.plots import colour_of, finish_figure, new_figure
from tfcollective_bench.report.table import MISS, PASS
from tfcollective_bench.statistics import percentile
from tfcollective_bench.units import seconds_text

__all__ = ["overview", "sections"]

_EXPLANATION = (
    "An elastic job is disturbed at random times, which follow from the seed. Each step takes a given time at least, "
    "as if an accelerator computed. goodput: the steps that counted in a second, over those of the same job "
    "undisturbed, before and after. stood still: the time between steps beyond the median, where it is five times the "
    "median or more; this does not depend on how busy the machine was before and after. still: the longest time "
    "without a completed step after a fault, until the next one. whole: from the fault to the first step of a world of "
    "as many ranks as before; not given where another rank was lost first.\n\n"
    "weights: the rows of a step follow from the seed and the step, and the ranks divide them, so the weights after so "
    "many steps are the same whatever the sizes of the worlds. They are compared with those of the same steps in one "
    "process. A step that was lost, counted twice or taken over in part would show. loss: of the disturbed job, and of "
    "undisturbed runs of as many steps on other data. steps done again: completed ones, that no rank had committed."
)
_WIDE_IN, _FLAT_IN = 10.0, 3.6
_NUMBERS = frozenset(
    {"faults", "still, median", "90 %", "longest", "whole, median", "whole, longest", "at", "still", "whole"}
)


def overview(report: Report) -> list[Table]:
    """The tables of the terminal: what had to hold, and the faults by kind."""
    return [_checks_table(report), _kinds_table(report)]


def _checks_table(report: Report) -> Table:
    rows = tuple((one.what, one.found, one.must, PASS if one.passed else MISS) for one in checks(report))
    rates = "; ".join(
        f"{sample.row.get('run', sample.metric)} {sample.values[0]:.1f} steps/s"
        for sample in select(report.samples, metric="rate")
    )
    again = next((int(sample.values[0]) for sample in select(report.samples, metric="steps done again")), 0)
    ranks = next((sample.values[0] for sample in select(report.samples, metric="ranks on average")), 0.0)
    still = next((sample.values[0] for sample in select(report.samples, metric="stood still")), 0.0)
    parts = [rates, f"it stood still for {still:.1%} of the time", f"{ranks:.2f} ranks on average"]
    note = "; ".join([*parts, f"{again} steps were done again", *report.notes])
    return Table("Chaos", ("what", "found", "must", "verdict"), rows, note=note)


def _kinds_table(report: Report) -> Table:
    rows = []
    for kind in FaultKind:
        still, whole = _values(report, "still", kind.value), _values(report, "whole", kind.value)
        if still:
            times = [percentile(still, percent) for percent in (50, 90, 100)]
            texts = [seconds_text(value) for value in times]
            texts += [seconds_text(percentile(whole, percent)) if whole else "-" for percent in (50, 100)]
            rows.append((kind.value, str(len(still)), *texts))
    columns = ("kind", "faults", "still, median", "90 %", "longest", "whole, median", "whole, longest")
    return Table("Faults by kind", columns, tuple(rows), _NUMBERS)


def _values(report: Report, metric: str, kind: str) -> list[float]:
    return [value for one in select(report.samples, metric=metric, fault=kind) for value in one.values]


def _faults_table(report: Report) -> Table:
    rows = tuple(
        (
            str(one["number"]),
            f"{one['at']:.1f} s",
            one["kind"],
            ", ".join(one["victims"]) or "-",
            f"{one['ranks']} in generation {one['generation']}",
            seconds_text(one["still"]),
            "-" if one["whole"] is None else seconds_text(one["whole"]),
        )
        for one in report.attachments["faults"]
    )
    skipped = "; ".join(f"{one['number']} ({one['kind']}): {one['why']}" for one in report.attachments["skipped"])
    columns = ("number", "at", "kind", "victims", "ranks", "still", "whole")
    return Table("All faults", columns, rows, _NUMBERS, note=f"skipped: {skipped}" if skipped else "")


def sections(report: Report) -> list[Section]:
    """The parts of the page."""
    plots = tuple(_plots(report)) if plots_available() and report.attachments["steps"] else ()
    text = "" if plots_available() else "There are none: matplotlib is missing (pip install 'tfcollective[bench]')."
    found = [
        Section("How to read this", _EXPLANATION),
        Section("Chaos", tables=tuple(overview(report))),
        Section("Plots", text, plots=plots),
        Section("All faults", tables=(_faults_table(report),)),
    ]
    stacks = report.attachments["stacks"]
    return [*found, Section("What the ranks did when it went wrong", stacks)] if stacks else found


def _plots(report: Report) -> Sequence[Plot]:
    drawn = [_worlds_plot(report), _kinds_plot(report)]
    return drawn if report.attachments["loss"] is None else [*drawn, _loss_plot(report.attachments["loss"])]


def _worlds_plot(report: Report) -> Plot:
    """Steps and ranks over time, with the faults."""
    title = "A disturbed job: completed steps, ranks and faults"
    figure, axes = new_figure(title, _WIDE_IN, _FLAT_IN * 1.25)
    steps, worlds = report.attachments["steps"], report.attachments["worlds"]
    end = steps[-1][0]
    axes.plot(
        [at for at, _ in steps], [count for _, count in steps], color=colour_of("steps", ("steps",)), linewidth=1.6
    )
    axes.set_xlabel("s", fontsize=9)
    axes.set_ylabel("completed steps", fontsize=9)
    for one in report.attachments["faults"]:
        axes.axvline(one["at"], color="#D55E00", alpha=0.35, linewidth=0.7)
    right = axes.twinx()
    right.step(
        [at for at, _ in worlds] + [end], [size for _, size in worlds] + [worlds[-1][1]], where="post",
        color="#009E73", linewidth=1.0,
    )  # fmt: skip
    right.set_ylim(0, 3 * max(size for _, size in worlds))
    right.set_yticks(range(max(size for _, size in worlds) + 1))
    right.set_ylabel("ranks (green); faults (red lines)", fontsize=9)
    right.spines["top"].set_visible(False)
    axes.set_xlim(0, end)
    axes.set_ylim(bottom=0)
    return finish_figure("worlds", title, figure)


def _kinds_plot(report: Report) -> Plot:
    """Draws each fault as a point: how long no step was completed, and until the world was whole again."""
    title = "How long no step was completed, and until as many ranks trained as before"
    kinds = [kind.value for kind in FaultKind if _values(report, "still", kind.value)][::-1]
    figure, axes = new_figure(title, _WIDE_IN, max(_FLAT_IN, 0.42 * len(kinds) + 1))
    for metric, label, colour, marker, shift in (
        ("still", "no step completed", "#0072B2", "o", 0.14),
        ("whole", "as many ranks as before", "#009E73", "D", -0.14),
    ):
        points = [(value, row + shift) for row, kind in enumerate(kinds) for value in _values(report, metric, kind)]
        axes.scatter(
            [x for x, _ in points], [y for _, y in points], s=16, color=colour, marker=marker, alpha=0.6, label=label
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(kinds)))
    axes.set_yticklabels(kinds, fontsize=8)
    axes.set_xlabel("s", fontsize=9)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return finish_figure("faults", title, figure)


def _loss_plot(loss: dict[str, Any]) -> Plot:
    """Returns the plot of the disturbed job's loss over its steps, with the band of the undisturbed runs."""
    title = "Loss above the least possible, of the disturbed job and of undisturbed ones on other data"
    figure, axes = new_figure(title)
    low, high = ([value - LEAST_LOSS for value in values] for values in zip(*loss["band"], strict=True))
    curve = [value - LEAST_LOSS for value in loss["curve"]]
    axes.fill_between(
        loss["steps"], low, high, color="#8A8A8A", alpha=0.35, linewidth=0, label="undisturbed, all seeds"
    )
    axes.plot(loss["steps"], curve, color="#0072B2", linewidth=1.4, label="disturbed")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("steps", fontsize=9)
    axes.set_ylabel(f"mean squared error - {LEAST_LOSS:g}", fontsize=9)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return finish_figure("loss", title, figure)
