"""Draws steps: computing and communicating above each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcollective._base.codec import from_document
from tfcollective_bench.model import Report
from tfcollective_bench.report import Plot, Section, Table, plots_available
from tfcollective_bench.report.plots import finish_figure, new_figure
from tfcollective_bench.training.step_timeline import RankSteps, StepTimeline

__all__ = ["timeline_sections"]

_TEXT = (
    "Steps of a further job of tfcollective, recorded with --timeline. The upper bar of a rank is TensorFlow: it "
    "computes, or has nothing to do but wait for gradients. The lower bar is communication, a colour a bucket, in the "
    "order in which buckets go. hidden: the part of the communication during which TensorFlow computed."
)
_COMPUTE, _WAIT = "#009E73", "#D9D9D9"
_BUCKETS = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00", "#6A3D9A")
_ROW_IN, _MARGIN_IN = 0.62, 1.5
_BAR = 0.36


def timeline_sections(report: Report) -> Iterator[Section]:
    """A part of the page for every scene that was recorded."""
    for number, entry in enumerate(report.attachments.get("timelines", ())):
        steps = from_document(entry["timeline"], StepTimeline, "the timeline of a report")
        scene = f"{entry['runner']}, {entry['model']}, {entry['ranks']} processes, {entry['link']}"
        name = f"steps-{entry['model']}-{entry['ranks']}-{entry['link']}"
        plots = (_draw(name, f"{steps.steps} steps: {scene}", steps),) if plots_available() else ()
        text = _TEXT if number == 0 else ""
        yield Section(f"Steps: {scene}", text, tables=(_table(steps),), plots=plots)


def _table(steps: StepTimeline) -> Table:
    columns = ("rank", "step", "computing", "waiting", "communicating", "hidden")
    rows = []
    for one in steps.ranks:
        hidden = steps.hidden(one)
        rows.append(
            (
                str(one.rank),
                f"{steps.length / steps.steps:.2f} ms",
                _percent((steps.length - steps.waited(one)) / steps.length),
                _percent(steps.waited(one) / steps.length),
                _percent(steps.communicated(one) / steps.length),
                "-" if hidden is None else _percent(hidden),
            )
        )
    note = "Of the time of the steps; hidden: of the communication."
    return Table("", columns, tuple(rows), frozenset(columns), note)


def _percent(part: float) -> str:
    return f"{part * 100:.0f} %"


def _draw(name: str, title: str, steps: StepTimeline) -> Plot:
    figure, axes = new_figure(title, height_in=_MARGIN_IN + _ROW_IN * len(steps.ranks))
    handles: dict[str, Any] = {}
    for row, one in enumerate(steps.ranks):
        _draw_rank(axes, row, one, steps.length, handles)
    axes.set_yticks(range(len(steps.ranks)))
    axes.set_yticklabels([f"rank {one.rank}" for one in steps.ranks], fontsize=8)
    axes.set_ylim(len(steps.ranks) - 0.5, -0.5)
    axes.set_xlim(0, steps.length)
    axes.set_xlabel("ms", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(False, axis="y")
    columns = min(6, len(handles))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )
    return finish_figure(name, title, figure)


def _draw_rank(axes: Any, row: int, one: RankSteps, length: float, handles: dict[str, Any]) -> None:
    upper, lower = (row - _BAR, _BAR * 0.94), (row + 0.02, _BAR * 0.94)
    whole = axes.broken_barh([(0, length)], upper, facecolors=_COMPUTE, linewidth=0)
    handles.setdefault("TensorFlow computes", whole)
    waits = axes.broken_barh(_extents(one.waits), upper, facecolors=_WAIT, linewidth=0)
    handles.setdefault("TensorFlow waits", waits)
    for number in sorted({number for number, _, _ in one.buckets}):
        spans = [(begin, end) for of_bucket, begin, end in one.buckets if of_bucket == number]
        colour = _BUCKETS[number % len(_BUCKETS)]
        bars = axes.broken_barh(_extents(spans), lower, facecolors=colour, edgecolors=colour, linewidth=0.4)
        handles.setdefault(f"bucket {number}", bars)


def _extents(spans: Any) -> list[tuple[float, float]]:
    return [(begin, end - begin) for begin, end in spans]
