"""The elastic report for people: a table and plots."""

from __future__ import annotations

from tfcollective_bench.elastic.run import METRICS
from tfcollective_bench.elastic.runners import RUNNERS
from tfcollective_bench.model import Report, select
from tfcollective_bench.report import Bars, Plot, Section, Table, draw_bars, plots_available
from tfcollective_bench.report.table import NOT_MEASURED
from tfcollective_bench.statistics import Summary, summarise
from tfcollective_bench.units import seconds_text

__all__ = ["overview", "sections", "summary_of"]

_EXPLANATION = (
    "A job on this host trains a Keras model that takes little computing. It begins with one rank less than it may "
    "have and gets another slot: a new slot to the larger world's first step is until all have completed one, the new "
    "process with them, and no step while it grew is from the last step before that. Then one rank is killed by "
    "SIGKILL. survivors: from the SIGKILL until all other ranks have completed a step of a later world. replacement: "
    "until a new process has completed its first step in a world of as many ranks as before. no step while it joined: "
    "from the last step before that one. Where all processes are "
    "started again, both are the first step of all new ones, and the world cannot grow. Elastic runners commit after "
    "each step; the one that is started again keeps its weights every 20 steps. Runners take turns.\n\n"
    "Horovod blocks the host of a lost rank and ends the other ranks there. So each of its ranks runs under another "
    "name of this host, and a blocked name counts again after the shortest pause that it allows."
)
_COLUMNS = ("what", "runner", "runs", "median", "90 %", "least", "longest")
_NUMBERS = frozenset(_COLUMNS[2:])


def overview(report: Report) -> list[Table]:
    """The table: each runner's times, also those that could not be measured."""
    rows: list[tuple[str, ...]] = []
    for metric, title in METRICS.items():
        for runner in dict.fromkeys(status.runner for status in report.statuses):
            found = summary_of(report, runner, metric)
            if found is None:
                rows.append((title, runner, "0", NOT_MEASURED, "", "", ""))
                continue
            times = (found.median, found.p90, found.minimum, found.maximum)
            rows.append((title, runner, str(found.count), *map(seconds_text, times)))
    return [Table("A rank is lost, and one more comes", _COLUMNS, tuple(rows), _NUMBERS, note=" ".join(report.notes))]


def summary_of(report: Report, runner: str, metric: str) -> Summary | None:
    """A runner's times over all rounds; None if there are none."""
    values = [value for sample in select(report.samples, runner=runner, metric=metric) for value in sample.values]
    return summarise(values) if values else None


def sections(report: Report) -> list[Section]:
    """The parts of the page."""
    text = "" if plots_available() else "There are no plots: matplotlib is missing (pip install 'tfcollective[bench]')."
    plots = (_plot(report),) if plots_available() and report.samples else ()
    return [
        Section("How to read this", _EXPLANATION),
        Section("A rank is lost, and one more comes", text, tables=tuple(overview(report)), plots=plots),
    ]


def _plot(report: Report) -> Plot:
    groups = []
    for metric, title in METRICS.items():
        found = {name: summary for name in RUNNERS if (summary := summary_of(report, name, metric)) is not None}
        groups.append(
            Bars(
                title,
                {name: summary.median for name, summary in found.items()},
                {name: summary.minimum for name, summary in found.items()},
                {name: summary.maximum for name, summary in found.items()},
            )
        )
    return draw_bars(
        "changes",
        "A rank is lost, and one more comes: time until training goes on",
        groups,
        y_label="s, median with least and longest",
        log_y=True,
        names=tuple(RUNNERS),
    )
