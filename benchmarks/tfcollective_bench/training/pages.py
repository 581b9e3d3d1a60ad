"""The training report for people: explanation, tables, plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tfcollective_bench.model import Report
from tfcollective_bench.report import Bars, Plot, Section, Series, Table, draw_bars, draw_lines, plots_available
from tfcollective_bench.report.plots import colour_of, finish_figure, new_figure
from tfcollective_bench.training.analysis import (
    Curve,
    Figure,
    Scene,
    figures_of,
    ps_wins,
    scenes,
    sweep_table,
    training_table,
)
from tfcollective_bench.training.overlay import timeline_sections
from tfcollective_bench.training.runners import RUNNERS

__all__ = ["overview", "sections"]

_EXPLANATION = (
    "samples/s: of all training processes together, over the measured epochs; the first epoch is dropped. p10 and p90: "
    "over all epochs of all rounds. ours / it: tfcollective's samples/s over this runner's, the median of the rounds, "
    "with the same TensorFlow where that was measured. of unconnected: the part of what the same processes do that do "
    "not communicate. wire: bytes sent over the link, headers included, for every sample; on loopback those of the "
    "whole machine. cpu: processor time of all processes of the job, parameter servers and coordinator included. "
    "loss: on held-out samples, at the number of trained samples that all have reached.\n\n"
    "equal processes: a parameter server has as many training processes as the others, and its servers and its "
    "coordinator run beside them on the same cores (on shaped links: on hosts of their own). equal cores: servers take "
    "the places, cores and hosts of training processes. Servers are swept from one up, handing out steps one by one "
    "and ten at a time; tables show the best. Parameter servers train asynchronously: their loss belongs to the "
    "comparison."
)


def overview(report: Report) -> list[Table]:
    """A table for every scene."""
    return [training_table(report, scene) for scene in scenes(report)]


def sections(report: Report) -> list[Section]:
    """The parts of the page."""
    result = [Section("How to read this", _EXPLANATION)]
    with_plots = plots_available()
    if with_plots:
        result.append(Section("Throughput", plots=tuple(_throughput_plots(report))))
    result.append(Section("Where parameter servers win", "\n\n".join(ps_wins(report)) or "Nowhere in this run."))
    for scene in scenes(report):
        tables = [training_table(report, scene), sweep_table(report, scene)]
        plots = tuple(_loss_plots(report, scene)) if with_plots else ()
        result.append(Section(scene.text, tables=tuple(table for table in tables if table), plots=plots))
    result.extend(timeline_sections(report))
    if with_plots:
        scaling = tuple(_scaling_plots(report))
        result.extend([Section("Scaling", plots=scaling)] if scaling else [])
    else:
        result.append(Section("Plots", "There are none: matplotlib is missing (pip install 'tfcollective[bench]')."))
    return result


def _groups(report: Report, key: Callable[[Scene], tuple[object, ...]]) -> list[list[Scene]]:
    """Scenes with equal keys together, in their order."""
    found: dict[tuple[object, ...], list[Scene]] = {}
    for scene in scenes(report):
        found.setdefault(key(scene), []).append(scene)
    return list(found.values())


def _throughput_plots(report: Report) -> Iterator[Plot]:
    """Bars for every number of processes, link and view; relative to the best, because models differ by orders."""
    for group in _groups(report, lambda scene: (scene.processes, scene.link, scene.view)):
        first = group[0]
        bars = [_bars(scene, figures_of(report, scene)) for scene in group]
        name = f"throughput-{first.processes}-{first.link}-{first.view}"
        title = f"Training, {first.processes} processes, {first.link}, equal {first.view}"
        yield draw_bars(name, title, bars, y_label="samples/s, % of the best runner's", names=tuple(RUNNERS))


def _bars(scene: Scene, found: Sequence[Figure]) -> Bars:
    best = max(figure.throughput.median for figure in found) / 100
    return Bars(
        f"{scene.model}\n(100 % = {best * 100:.0f}/s)",
        {figure.runner: figure.throughput.median / best for figure in found},
        {figure.runner: figure.throughput.p10 / best for figure in found},
        {figure.runner: figure.throughput.p90 / best for figure in found},
    )


def _loss_plots(report: Report, scene: Scene) -> Iterator[Plot]:
    found = figures_of(report, scene)
    stem = f"{scene.model}-{scene.processes}-{scene.link}-{scene.view}"
    yield _curves(f"loss-samples-{stem}", f"Loss against samples: {scene.text}", found, "samples trained", _samples)
    yield _curves(f"loss-seconds-{stem}", f"Loss against time: {scene.text}", found, "seconds of training", _seconds)


def _samples(curve: Curve) -> tuple[float, ...]:
    return curve.samples


def _seconds(curve: Curve) -> tuple[float, ...]:
    return curve.seconds


def _curves(
    name: str, title: str, found: Sequence[Figure], x_label: str, x_of: Callable[[Curve], tuple[float, ...]]
) -> Plot:
    figure, axes = new_figure(title)
    for one in found:
        colour = colour_of(one.runner, tuple(RUNNERS))
        axes.plot(x_of(one.curve), one.curve.losses, label=one.runner, color=colour, marker="o", markersize=3.5)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel("held-out loss, nats", fontsize=9)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return finish_figure(name, title, figure)


def _scaling_plots(report: Report) -> Iterator[Plot]:
    """Samples/s against processes, where more than one number was measured."""
    for group in _groups(report, lambda scene: (scene.model, scene.link, scene.view)):
        if len(group) < 2:
            continue
        first = group[0]
        by_size = {scene.processes: figures_of(report, scene) for scene in group}
        yield draw_lines(
            f"scaling-{first.model}-{first.link}-{first.view}",
            f"Training {first.model} on more processes, {first.link}, equal {first.view}",
            [line for name in RUNNERS if (line := _line(name, by_size)).x],
            x_label="training processes",
            y_label="samples/s, median with p10 to p90",
            names=tuple(RUNNERS),
            log_y=False,
            bytes_on_x=False,
        )


def _line(name: str, by_size: dict[int, list[Figure]]) -> Series:
    points = [(size, f.throughput) for size in sorted(by_size) for f in by_size[size] if f.runner == name]
    return Series(
        name,
        tuple(float(size) for size, _ in points),
        tuple(summary.median for _, summary in points),
        tuple(summary.p10 for _, summary in points),
        tuple(summary.p90 for _, summary in points),
    )
