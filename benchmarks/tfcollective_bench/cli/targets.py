"""``tfcollective bench targets``: the performance targets, and which of them are met."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcollective._cli.groups import option
from tfcollective_bench.cli.common import as_typed, baselines_option, interruptible, names, out_option, prepare, say

if TYPE_CHECKING:
    from tfcollective_bench.model import Report

__all__ = ["targets"]


@click.command(
    params=[
        click.Argument(["reports"], nargs=-1, metavar="[REPORT]..."),
        option("--quick", is_flag=True, help="Fewer sizes and rounds: less than ten minutes."),
        option("--only", metavar="GROUP,...", help="Groups to measure: allreduce, training. [all]"),
        option("--strict", is_flag=True, help="Exit with code 1 when a required target is missed."),
        out_option("benchmarks"),
        baselines_option,
    ],
    short_help="Measures the performance targets, and says which are met.",
    epilog="""\b
Examples:
  tfcollective bench targets --quick
  tfcollective bench targets --out results --strict
  tfcollective bench targets results/benchmarks.json""",
)
def targets(
    reports: Sequence[str], quick: bool, only: str | None, strict: bool, out: str | None, baselines: str | None
) -> int:
    """Measures the performance targets and prints which of them are met.

    With REPORT, a JSON file of an earlier run, it reads the measurements from there and measures nothing.
    """
    from tfcollective_bench.report import Section, load_report, print_table, write_report
    from tfcollective_bench.suite import merge, sections_of_suite
    from tfcollective_bench.targets_report import missed, outcomes, targets_report

    if reports:
        report = merge([load_report(Path(path)) for path in reports], (), as_typed())
    else:
        report = _measure_targets(quick, only, baselines, out)
    found = outcomes(report.samples, statuses=report.statuses)
    print_table(targets_report(found))
    _print_what_did_not_run(report)
    if out is not None:
        parts_of_page = [Section("Targets", tables=(targets_report(found, ""),)), *sections_of_suite(report)]
        for path in write_report(report, parts_of_page, Path(out), "benchmarks")[:2]:
            say(f"wrote {path}")
    return 1 if strict and missed(found) else 0


def _measure_targets(quick: bool, only: str | None, baselines: str | None, out: str | None) -> Report:
    """Runs the parts; with `out`, the samples so far are written after every part."""
    from tfcollective._base.clock import Deadline
    from tfcollective_bench.progress import show_progress
    from tfcollective_bench.report import write_json
    from tfcollective_bench.suite import QUICK_S, Circumstances, parts_named, run_suite

    def keep(report: Report) -> None:
        if folder is not None:
            write_json(report, folder / "benchmarks.json")

    parts = parts_named(names(only))
    prepare(out)
    folder = None if out is None else Path(out)
    until = Deadline.after(QUICK_S) if quick else Deadline.never()
    how = Circumstances(quick, baselines or "", as_typed(), show_progress, until)
    with interruptible():
        return run_suite(parts, how, say, keep)


def _print_what_did_not_run(report: Report) -> None:
    """Runners that are missing or failed, and parts that were skipped."""
    for status in report.statuses:
        if status.state.value != "ran":
            click.echo(f"{status.runner}: {status.state.value}: {status.detail}")
    for note in report.notes:
        click.echo(note)
