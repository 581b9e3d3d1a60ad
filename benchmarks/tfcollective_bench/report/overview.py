"""The two pictures of the README, drawn from the published tables of docs/performance.md.

python -m tfcollective_bench.report.overview docs/performance.md docs/images
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcollective_bench.report.plots import colour_of

__all__ = ["PICTURES", "draw", "figures_of", "row", "seconds"]

_TRAINING, _ELASTIC = "Training, 2 workers on 2 cores", "Elastic jobs"
#: All under TensorFlow 2.15.1, so that one process and the bound are the same for all: the row of the table, its bar.
RUNNERS = {
    "tfcollective, Keras 2": "tfcollective",
    "Horovod": "Horovod",
    "MultiWorkerMirroredStrategy": "MultiWorker-\nMirrored",
    "ParameterServerStrategy": "parameter\nservers",
}
ONE, BOUND = "one process, Keras 2", "two unconnected processes, Keras 2"
MODELS = {"MLP 1024": "perceptron, 1.9 M weights", "convolutions": "convolutional network"}
SYSTEMS = {"`ours`": "tfcollective", "`restart`": "restart from\na backup", "Horovod elastic": "Horovod\nelastic"}
TIMES = {
    "SIGKILL to the survivors' next step": "until the others' next step",
    "SIGKILL to the replacement's first step": "until the first step of its replacement",
}

_WIDTH_IN, _HEIGHT_IN, _DPI = 4.0, 4.3, 200  # for 400 pixels of a page, twice as dense
_OTHERS = "#9AA5B1"


def row(page: str, section: str, name: str) -> Mapping[str, float]:
    """The medians of a row in a section's table, by the titles of the columns.

    Raises:
        KeyError: there is no row that begins with `name`.
    """
    text = page.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    titles = next(line for line in cells if set(line) != {"---"})
    found = next((line for line in cells if line[0].startswith(name)), None)
    if found is None:
        raise KeyError(name)
    # The first column has no title where its cell is empty, and is stripped away then.
    columns = titles[len(titles) - len(found) + 1 :]
    return {title: _number(cell) for title, cell in zip(columns, found[1:], strict=True) if cell}


def _number(cell: str) -> float:
    """``13 800 [12 300, 15 800]`` is 13800; ``123 ms (117 to 129)`` is 0.123 s."""
    median = re.split(r"[\[(]", cell, maxsplit=1)[0].strip()
    value, unit = (median[:-2], 1e-3) if median.endswith("ms") else (median.removesuffix("s"), 1.0)
    return float(value.replace(" ", "")) * unit


def seconds(value: float) -> str:
    """Formats seconds with two digits: 0.12 s, 7.6 s, 30 s."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _speeds(page: str, model: str) -> tuple[list[float], float]:
    """Samples a second of two workers, as multiples of one process: by library, and of two that do not communicate."""
    one = row(page, _TRAINING, ONE)[model]
    return [row(page, _TRAINING, name)[model] / one for name in RUNNERS], row(page, _TRAINING, BOUND)[model] / one


def _pauses(page: str, change: str) -> list[float]:
    """The seconds until training goes on in this way after one of three processes is killed."""
    columns = row(page, _ELASTIC, change)
    return [columns[name] for name in SYSTEMS]


def _draw_training(page: str) -> Any:
    figure, panels = _figure("2 workers, 2 cores: speed against 1 process", len(MODELS))
    speeds = {model: _speeds(page, model) for model in MODELS}
    for axes, (model, title) in zip(panels, MODELS.items(), strict=True):
        values, bound = speeds[model]
        _bars(axes, list(RUNNERS.values()), values, [f"{value:.2f}x" for value in values])
        axes.axvline(1, color="#555555", linewidth=1, zorder=0)
        axes.axvline(bound, color="#D55E00", linewidth=1.5, linestyle="--")
        axes.text(bound, -0.62, f"bound {bound:.2f}x", color="#B04A00", fontsize=8.5, ha="center", va="bottom")
        axes.set_xlim(0, 1.12 * max(limit for _, limit in speeds.values()))
        axes.set_title(title, fontsize=9.5, loc="left", pad=12)
        axes.set_xticks([0, 1, 2], ["0", "1 process", "2x"], fontsize=8.5)
    return figure


def _draw_elastic(page: str) -> Any:
    figure, panels = _figure("1 of 3 processes is killed", len(TIMES))
    for axes, (change, title) in zip(panels, TIMES.items(), strict=True):
        values = _pauses(page, change)
        _bars(axes, list(SYSTEMS.values()), values, [seconds(value) for value in values])
        axes.set_xscale("log")
        axes.set_xlim(0.01, 60)
        axes.set_title(title, fontsize=9.5, loc="left", pad=12)
        axes.set_xticks([0.01, 0.1, 1, 10], ["0.01 s", "0.1 s", "1 s", "10 s"], fontsize=8.5)
        axes.minorticks_off()
    return figure


#: By the name of the file without its ending.
PICTURES = {"overview-training": _draw_training, "overview-elastic": _draw_elastic}


def figures_of(name: str, page: str) -> str:
    """The numbers in a picture, as text; the PNG has it as its ``Comment``, so that a test finds one that is out of
    date."""
    if name == "overview-elastic":
        return " ".join(seconds(value) for change in TIMES for value in _pauses(page, change))
    speeds = (_speeds(page, model) for model in MODELS)
    return " ".join(f"{value:.2f}x" for values, bound in speeds for value in (*values, bound))


def draw(name: str, page: str, file: Path) -> None:
    """Writes a picture as PNG."""
    PICTURES[name](page).savefig(file, metadata={"Software": None, "Comment": figures_of(name, page)})


def _figure(title: str, rows: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), dpi=_DPI, layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")
    return figure, list(figure.subplots(rows))


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> None:
    """Draws bars from top to bottom, each with its text inside its end; the first one is ours."""
    ours = colour_of("ours", ["ours"])
    bars = axes.barh(range(len(names)), values, 0.72, color=[ours, *[_OTHERS] * (len(names) - 1)])
    for index, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        colour = "white" if index == 0 else "black"
        axes.annotate(
            text,
            (bar.get_width(), index),
            (-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold",
        )
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main(page: Path, folder: Path) -> None:
    """Writes both pictures."""
    for name in PICTURES:
        draw(name, page.read_text(), folder / f"{name}.png")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
