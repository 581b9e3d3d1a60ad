"""Turns samples into figures and tables: pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tfcollective_bench.model import Report, Sample, select
from tfcollective_bench.report import Table
from tfcollective_bench.statistics import Summary, medians_by_round, paired_ratio, summarise
from tfcollective_bench.training.models import MODELS
from tfcollective_bench.training.options import LOOPBACK
from tfcollective_bench.training.runners import RUNNERS
from tfcollective_bench.wire import ring_seconds

__all__ = ["Curve", "Figure", "Scene", "figures_of", "ps_wins", "scenes", "sweep_table", "training_table", "wire_bound"]

_PS = "ps"


@dataclass(frozen=True)
class Scene:
    """The scope in which figures are comparable: one model, one number of processes, one link, one view."""

    model: str
    processes: int
    link: str
    view: str

    @property
    def text(self) -> str:
        """The scene's name for people."""
        return f"{self.model}, {self.processes} processes, {self.link}, equal {self.view}"


@dataclass(frozen=True)
class Curve:
    """Losses on the held-out samples against samples trained and against seconds of training; medians of the rounds."""

    samples: tuple[float, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]

    def at(self, samples: float) -> float | None:
        """The loss after so many samples, interpolated; None beyond the last."""
        pairs = list(zip(self.samples, self.losses, strict=True))
        for (left, before), (right, after) in pairwise(pairs):
            if left <= samples <= right:
                return before + (after - before) * (samples - left) / (right - left)
        return None


@dataclass(frozen=True)
class Figure:
    """The result of one runner in a scene. Of a parameter server: the best variant, named in `variant`."""

    runner: str
    variant: str
    throughput: Summary
    by_round: Mapping[int, float]
    wire: float
    cpu: float
    curve: Curve


def scenes(report: Report) -> list[Scene]:
    """Returns all scenes measured, in the order of measuring; a view only if something differs in it."""
    found = dict.fromkeys(
        Scene(str(s.row["model"]), int(s.row["ranks"]), str(s.row["link"]), str(s.row["view"])) for s in report.samples
    )
    return sorted(found, key=lambda scene: scene.view != "processes")


def figures_of(report: Report, scene: Scene) -> list[Figure]:
    """Returns one figure for every runner that ran in the scene, in the order of their table. Runners without servers
    are the same in every view."""
    result = []
    for runner in RUNNERS:
        view = scene.view if runner == _PS else "processes"
        rows = _rows(report.samples, runner, Scene(scene.model, scene.processes, scene.link, view))
        if rows:
            result.append(max(rows, key=lambda figure: figure.throughput.median))
    return result


def _rows(samples: Sequence[Sample], runner: str, scene: Scene) -> list[Figure]:
    """A figure for every variant of the runner."""
    mine = list(select(samples, runner=runner, **_cells(scene)))
    variants = dict.fromkeys((s.row.get("servers", 0), s.row.get("steps_per_execution", 1)) for s in mine)
    found = []
    for servers, steps in variants:
        wanted = [s for s in mine if (s.row.get("servers", 0), s.row.get("steps_per_execution", 1)) == (servers, steps)]
        found.append(_figure(runner, _variant_text(int(servers), int(steps)), wanted))
    return found


def _cells(scene: Scene) -> dict[str, Any]:
    return {"model": scene.model, "ranks": scene.processes, "link": scene.link, "view": scene.view}


def _variant_text(servers: int, steps: int) -> str:
    if not servers:
        return ""
    return f"{servers} server{'s' if servers > 1 else ''}, {steps} step{'s' if steps > 1 else ''} at a time"


def _figure(runner: str, variant: str, samples: Sequence[Sample]) -> Figure:
    throughput = list(select(samples, metric="throughput"))
    return Figure(
        runner,
        variant,
        summarise([value for sample in throughput for value in sample.values]),
        medians_by_round(throughput),
        summarise([value for sample in select(samples, metric="wire") for value in sample.values]).median,
        summarise([value for sample in select(samples, metric="cpu") for value in sample.values]).median,
        _curve(samples),
    )


def _curve(samples: Sequence[Sample]) -> Curve:
    def medians(metric: str) -> tuple[float, ...]:
        return tuple(statistics.median(values) for values in zip(*(s.values for s in select(samples, metric=metric))))  # noqa: B905

    seconds = medians("seconds")
    # The dropped epoch took some time, too; it is counted as long as the first measured one.
    totals = [0.0, *(sum(seconds[: index + 1]) + seconds[0] for index in range(len(seconds)))]
    return Curve(medians("trained"), tuple(totals), medians("loss"))


def wire_bound(scene: Scene) -> float | None:
    """Samples a second at most, when every step has to move the dense gradients by an all-reduce over the scene's link
    and computing takes no time: 2(p-1)/p bytes for every byte, at the link's rate less the frames' headers."""
    model = MODELS[scene.model]
    if scene.link == LOOPBACK or scene.processes < 2 or model.sparse_bytes:
        return None
    return scene.processes * model.batch / ring_seconds(scene.processes, model.dense_bytes, scene.link)


def training_table(report: Report, scene: Scene) -> Table:
    """Returns a table of all runners of a scene."""
    found = figures_of(report, scene)
    by_name = {figure.runner: figure for figure in found}
    equal = min((figure.curve.samples[-1] for figure in found), default=0.0)
    bound = wire_bound(scene)
    columns = [
        "runner", "samples/s", "p10", "p90", "ours / it", "of unconnected", "wire B/sample", "cpu ms/sample",
        f"loss at {equal:.0f}", "variant",
    ]  # fmt: skip
    rows = [_row(figure, by_name, equal) for figure in found]
    if bound is not None:
        rows.append(("wire bound", f"{bound:.0f}", "-", "-", _share(by_name.get("ours"), bound), *["-"] * 5))
    return Table(scene.text, tuple(columns), tuple(rows), frozenset(columns) - {"runner", "variant"}, _note(scene))


def _row(figure: Figure, by_name: Mapping[str, Figure], equal: float) -> tuple[str, ...]:
    loss = figure.curve.at(equal)
    return (
        figure.runner,
        f"{figure.throughput.median:.0f}",
        f"{figure.throughput.p10:.0f}",
        f"{figure.throughput.p90:.0f}",
        _times(_ratio(_partner("ours", figure.runner, by_name), figure)),
        _percent(_ratio(figure, _partner("unconnected", figure.runner, by_name))),
        f"{figure.wire:.0f}",
        f"{figure.cpu * 1e3:.3f}",
        "-" if loss is None else f"{loss:.3f}",
        figure.variant or "-",
    )


def _partner(kind: str, runner: str, by_name: Mapping[str, Figure]) -> Figure | None:
    """Ours, or the unconnected processes, with the same TensorFlow as the runner if that was measured."""
    other = "" if RUNNERS[runner].environment == "keras3" else "-keras2"
    return by_name.get(f"{kind}{other}") or by_name.get(kind) or by_name.get(f"{kind}-keras2")


def _ratio(above: Figure | None, below: Figure | None) -> Summary | None:
    if above is None or below is None or above is below:
        return None
    return paired_ratio(above.by_round, below.by_round)


def _times(ratio: Summary | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f}x"


def _percent(ratio: Summary | None) -> str:
    return "-" if ratio is None else f"{ratio.median * 100:.0f} %"


def _share(ours: Figure | None, bound: float) -> str:
    return "-" if ours is None else f"{ours.throughput.median / bound:.2f}x"


def _note(scene: Scene) -> str:
    model = MODELS[scene.model]
    sparse = f" and at most {model.sparse_bytes / 1e6:.2f} MB sparse" if model.sparse_bytes else ""
    return f"{model.text}; batch {model.batch}, {model.dense_bytes / 1e6:.2f} MB of dense gradients{sparse} a step."


def sweep_table(report: Report, scene: Scene) -> Table | None:
    """Returns a table of the parameter server's variants in a scene; None if it did not run."""
    rows = tuple(
        (figure.variant, f"{f.median:.0f}", f"{f.p10:.0f}", f"{f.p90:.0f}", f"{figure.wire:.0f}")
        for figure in _rows(report.samples, _PS, scene)
        for f in (figure.throughput,)
    )
    columns = ("variant", "samples/s", "p10", "p90", "wire B/sample")
    return Table("parameter servers", columns, rows, frozenset(columns[1:])) if rows else None


def ps_wins(report: Report) -> Iterator[str]:
    """A sentence for every scene in which parameter servers are faster than the slower of tfcollective's runners."""
    for scene in scenes(report):
        by_name = {figure.runner: figure for figure in figures_of(report, scene)}
        servers = by_name.get(_PS)
        for name in ("ours", "ours-keras2"):
            ours = by_name.get(name)
            if ours is None or servers is None or servers.throughput.median <= ours.throughput.median:
                continue
            yield (
                f"{scene.text}: parameter servers ({servers.variant}) train {servers.throughput.median:.0f} samples/s, "
                f"{name} {ours.throughput.median:.0f}."
            )
