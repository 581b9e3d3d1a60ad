"""Plots, drawn by matplotlib (the extra ``bench``) without its global state."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tfcollective._base.errors import UnsupportedError
from tfcollective_bench.units import bytes_text

__all__ = ["Bars", "Plot", "Series", "colour_of", "draw_bars", "draw_lines", "new_figure", "plots_available"]

_WIDTH_IN, _HEIGHT_IN, _DPI = 7.6, 4.6, 110
# Okabe and Ito's palette: distinguishable by everybody, and in print.
_PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D31",
    "#8A8A8A",
    "#6A3D9A",
)
_MARKERS = "osD^vP*X"
_GRID = "#d8d8d8"
_HEADROOM = 1.06  # so that the highest marker is whole
_FEW_POWERS = 300.0
_COLUMNS = 100  # of letters, under all groups of bars


@dataclass(frozen=True)
class Series:
    """A line: a value at each x, and its spread from `low` to `high` (empty: none)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bars:
    """A group of bars: a value for each name, with its spread."""

    label: str
    values: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]


@dataclass(frozen=True)
class Plot:
    """A finished drawing. `name` is good for a file."""

    name: str
    title: str
    svg: bytes
    png: bytes

    def svg_uri(self) -> str:
        """The drawing as an address that holds it all."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode("ascii")


def plots_available() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def colour_of(name: str, names: Sequence[str]) -> str:
    """The colour of one of several names: the same on every plot that is given the same names."""
    return _PALETTE[names.index(name) % len(_PALETTE)]


def draw_lines(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    names: Sequence[str],
    log_y: bool = True,
    bytes_on_x: bool = True,
) -> Plot:
    """Values against sizes (or ranks), with spread; x is logarithmic to base 2.

    Args:
        names: all runners of the report, for colours that do not change from plot to plot.
    """
    figure, axes = new_figure(title)
    for line in series:
        colour = colour_of(line.name, names)
        marker = _MARKERS[names.index(line.name) % len(_MARKERS)]
        axes.plot(line.x, line.y, label=line.name, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    if log_y:
        _scale_log(axes, [y for line in series for y in (*line.y, *line.low, *line.high)])
    else:
        axes.set_ylim(0, _HEADROOM * max((y for line in series for y in (*line.y, *line.high)), default=1.0) or 1.0)
    ticks = sorted({x for line in series for x in line.x})
    axes.set_xticks(ticks)
    axes.set_xticklabels([bytes_text(int(x)) if bytes_on_x else f"{x:g}" for x in ticks], rotation=0, fontsize=8)
    axes.minorticks_off()
    return _finish(name, title, figure, axes, x_label, y_label)


def _scale_log(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis of y; with more ticks where it has few powers of ten."""
    axes.set_yscale("log")
    above = [value for value in values if value > 0]
    if above and max(above) < _FEW_POWERS * min(above):
        from matplotlib.ticker import FuncFormatter, LogLocator

        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_bars(
    name: str, title: str, groups: Sequence[Bars], *, y_label: str, names: Sequence[str], log_y: bool = False
) -> Plot:
    """Groups of bars side by side, one bar a name, with spread and the value above.

    Args:
        log_y: for values that are more than a power of ten apart.
    """
    figure, axes = new_figure(title)
    shown = [entry for entry in names if any(entry in group.values for group in groups)]
    width = 0.8 / max(len(shown), 1)
    for index, entry in enumerate(shown):
        places = [(number, group) for number, group in enumerate(groups) if entry in group.values]
        x = [number + (index - (len(shown) - 1) / 2) * width for number, _ in places]
        y = [group.values[entry] for _, group in places]
        below = [max(0.0, group.values[entry] - group.low[entry]) for _, group in places]
        above = [max(0.0, group.high[entry] - group.values[entry]) for _, group in places]
        axes.bar(x, y, width * 0.92, label=entry, color=colour_of(entry, names))
        axes.errorbar(x, y, yerr=[below, above], fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        for place, value, spread in zip(x, y, above, strict=True):
            axes.annotate(
                _short(value), (place, value + spread), (0, 3), textcoords="offset points", ha="center", fontsize=7
            )
    axes.set_xticks(range(len(groups)))
    columns = _COLUMNS // max(len(groups), 1)
    axes.set_xticklabels([textwrap.fill(group.label, columns) for group in groups], fontsize=8)
    if log_y:
        _scale_log(axes, [value for group in groups for value in (*group.low.values(), *group.high.values())])
    else:
        axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    return _finish(name, title, figure, axes, "", y_label)


def new_figure(title: str, width_in: float = _WIDTH_IN, height_in: float = _HEIGHT_IN) -> tuple[Any, Any]:
    """A figure and its axes, in the style of the report.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    if not plots_available():
        raise UnsupportedError("plots need matplotlib: pip install 'tfcollective[bench]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=_DPI, layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def finish_figure(name: str, title: str, figure: Any) -> Plot:
    """Renders a figure made by :func:`new_figure`."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png")
    return Plot(name, title, svg.getvalue(), png.getvalue())


def _finish(name: str, title: str, figure: Any, axes: Any, x_label: str, y_label: str) -> Plot:
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.tick_params(labelsize=8)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        figure.legend(loc="outside lower center", ncols=min(5, math.ceil(len(handles))), fontsize=8, frameon=False)
    return finish_figure(name, title, figure)


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
