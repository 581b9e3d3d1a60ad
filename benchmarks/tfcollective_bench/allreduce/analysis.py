"""Turns samples into figures, tables and plots. Pure, except for the drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfcollective_bench.allreduce.runners import RUNNERS
from tfcollective_bench.model import Report, Sample, select
from tfcollective_bench.report import Plot, Section, Series, Table, draw_lines, plots_available
from tfcollective_bench.statistics import Summary, summarise
from tfcollective_bench.units import bandwidth_text, bytes_text, seconds_text

__all__ = ["Figure", "algbw", "busbw", "figures", "labels", "overview", "sections"]

_EXPLANATION = (
    "latency: one call, mean over the ranks; median and percentiles over all repetitions of all rounds. algbw: bytes "
    "per second as the caller sees them. busbw: algbw x 2(p-1)/p, what the links carry (the formulas of nccl-tests). "
    "cpu: processor seconds of all threads of all ranks for one call. overhead: a call through the same layers that "
    "communicates nothing; it is part of the latency.\n\n"
    "Inputs are written anew before every call. hot: the call follows at once. cold: memory of twice the last-level "
    "cache is touched first. Every element of every result is compared."
)


@dataclass(frozen=True)
class Figure:
    """The result of one runner in one row."""

    label: str
    ranks: int
    cache: str
    bytes: int
    latency: Summary
    cpu: float
    overhead: float

    @property
    def algbw(self) -> float:
        """Bytes per second as the caller sees them."""
        return algbw(self.bytes, self.latency.median)

    @property
    def busbw(self) -> float:
        """Bytes per second as a link sees them."""
        return busbw(self.bytes, self.latency.median, self.ranks)


def algbw(size: int, seconds: float) -> float:
    """nccl-tests' algorithm bandwidth, bytes/s."""
    return size / seconds


def busbw(size: int, seconds: float, ranks: int) -> float:
    """nccl-tests' bus bandwidth of an all-reduce, bytes/s."""
    return algbw(size, seconds) * 2 * (ranks - 1) / ranks


def label_of(sample: Sample) -> str:
    """The runner, with its transport if that was chosen."""
    transport = sample.row.get("transport", "auto")
    marks = [str(mark) for mark in (transport, sample.row.get("link", "auto")) if mark != "auto"]
    return f"{sample.runner} ({', '.join(marks)})" if marks else sample.runner


def labels(report: Report) -> tuple[str, ...]:
    """Returns all runners of the report, in the order of their table."""
    found = {label_of(sample): list(RUNNERS).index(sample.runner) for sample in report.samples}
    return tuple(sorted(found, key=lambda label: (found[label], label)))


def figures(report: Report) -> list[Figure]:
    """Returns one figure for every runner and row, ordered by ranks, cache, size, runner."""
    groups: dict[tuple[int, str, int, str], list[Sample]] = {}
    for sample in report.samples:
        key = (int(sample.row["ranks"]), str(sample.row["cache"]), int(sample.row["bytes"]), label_of(sample))
        groups.setdefault(key, []).append(sample)
    order = {label: place for place, label in enumerate(labels(report))}
    keys = sorted(groups, key=lambda key: (key[0], key[1] != "hot", key[2], order[key[3]]))
    return [
        Figure(label, ranks, cache, size, *_values(groups[ranks, cache, size, label]))
        for ranks, cache, size, label in keys
    ]


def _values(samples: Sequence[Sample]) -> tuple[Summary, float, float]:
    def all_of(metric: str) -> list[float]:
        return [value for sample in select(samples, metric=metric) for value in sample.values]

    return summarise(all_of("latency")), summarise(all_of("cpu")).median, summarise(all_of("overhead")).median


def _worlds(found: Sequence[Figure]) -> Iterator[tuple[int, str, list[Figure]]]:
    for ranks, cache in dict.fromkeys((figure.ranks, figure.cache) for figure in found):
        yield ranks, cache, [figure for figure in found if (figure.ranks, figure.cache) == (ranks, cache)]


def overview(report: Report) -> list[Table]:
    """Median latencies, a table for every world: sizes down, runners across."""
    tables = []
    for ranks, cache, found in _worlds(figures(report)):
        names = [name for name in labels(report) if any(figure.label == name for figure in found)]
        cells = {(figure.bytes, figure.label): seconds_text(figure.latency.median) for figure in found}
        sizes = list(dict.fromkeys(figure.bytes for figure in found))
        rows = [(bytes_text(size), *(cells.get((size, name), "-") for name in names)) for size in sizes]
        title = f"median latency, {ranks} ranks, {cache}"
        tables.append(Table(title, ("bytes", *names), tuple(rows), frozenset(("bytes", *names))))
    return tables


def _details(found: Sequence[Figure], title: str) -> Table:
    columns = ("bytes", "runner", "median", "p10", "p90", "p99", "algbw", "busbw", "cpu", "overhead", "samples")
    rows = tuple(
        (
            bytes_text(figure.bytes),
            figure.label,
            *(seconds_text(getattr(figure.latency, name)) for name in ("median", "p10", "p90", "p99")),
            bandwidth_text(figure.algbw),
            bandwidth_text(figure.busbw),
            seconds_text(figure.cpu),
            seconds_text(figure.overhead) if figure.overhead else "-",
            str(figure.latency.count),
        )
        for figure in found
    )
    return Table(title, columns, rows, frozenset(columns) - {"runner"})


def sections(report: Report) -> list[Section]:
    """The parts of the page: for every world its plots, medians and details; then scaling against ranks."""
    found = figures(report)
    result = [Section("How to read this", _EXPLANATION)]
    details = []
    for (ranks, cache, of_world), table in zip(_worlds(found), overview(report), strict=True):
        plots = tuple(_world_plots(of_world, ranks, cache, labels(report))) if plots_available() else ()
        result.append(Section(f"{ranks} ranks, {cache}", tables=(table,), plots=plots))
        details.append(_details(of_world, f"{ranks} ranks, {cache}"))
    if plots_available() and len({figure.ranks for figure in found}) > 1:
        result.append(Section("Scaling", plots=tuple(_scaling_plots(found, labels(report)))))
    if not plots_available():
        result.append(Section("Plots", "There are none: matplotlib is missing (pip install 'tfcollective[bench]')."))
    result.append(Section("All figures", tables=tuple(details)))
    return result


def _world_plots(found: Sequence[Figure], ranks: int, cache: str, names: Sequence[str]) -> Iterator[Plot]:
    stem = f"{ranks}ranks-{cache}"
    world = f"{ranks} ranks, {cache}"
    latency, bandwidth, cpu = [], [], []
    for name in names:
        mine = [figure for figure in found if figure.label == name]
        x = tuple(float(figure.bytes) for figure in mine)
        if not mine:
            continue
        low, middle, high = (
            tuple(getattr(figure.latency, place) * 1e6 for figure in mine) for place in ("p10", "median", "p90")
        )
        latency.append(Series(name, x, middle, low, high))
        bandwidth.append(Series(name, x, tuple(figure.busbw / 1e9 for figure in mine)))
        cpu.append(Series(name, x, tuple(figure.cpu * 1e6 for figure in mine)))
    yield draw_lines(
        f"latency-{stem}",
        f"All-reduce latency, {world}",
        latency,
        x_label="bytes",
        y_label="us, median with p10 to p90",
        names=names,
    )
    yield draw_lines(
        f"busbw-{stem}",
        f"All-reduce bus bandwidth, {world}",
        bandwidth,
        x_label="bytes",
        y_label="GB/s, of the median",
        names=names,
        log_y=False,
    )
    yield draw_lines(
        f"cpu-{stem}",
        f"Processor time of one all-reduce, all ranks, {world}",
        cpu,
        x_label="bytes",
        y_label="us, median",
        names=names,
    )


def _scaling_plots(found: Sequence[Figure], names: Sequence[str]) -> Iterator[Plot]:
    """Latency against ranks, for the smallest, a middle and the largest size, hot if it was measured."""
    cache = found[0].cache
    sizes = sorted({figure.bytes for figure in found})
    for size in dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])):
        lines = []
        for name in names:
            mine = [f for f in found if (f.label, f.bytes, f.cache) == (name, size, cache)]
            low, middle, high = (
                tuple(getattr(figure.latency, place) * 1e6 for figure in mine) for place in ("p10", "median", "p90")
            )
            if mine:
                lines.append(Series(name, tuple(float(figure.ranks) for figure in mine), middle, low, high))
        yield draw_lines(
            f"scaling-{bytes_text(size)}",
            f"Latency of {bytes_text(size)} against ranks, {cache}",
            lines,
            x_label="ranks",
            y_label="us, median with p10 to p90",
            names=names,
            bytes_on_x=False,
        )
