"""The scaling report for people: tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tfcollective_bench.model import Cell, Report, select
from tfcollective_bench.report import Plot, Section, Series, Table, draw_lines, plots_available
from tfcollective_bench.scaling.runners import COORDINATOR, NODES, RUNNERS
from tfcollective_bench.statistics import Summary, summarise
from tfcollective_bench.units import bytes_text, seconds_text

__all__ = ["StepCost", "overview", "sections", "step_costs"]

_EXPLANATION = (
    "step: one call of a tf.function that takes the gradients of so many variables through DistributedGradientTape; "
    "the bytes of all gradients together stay the same, so more tensors are smaller tensors. The loss costs next to "
    "nothing. local: the same function with TensorFlow's own tape. added: the difference of the medians, what "
    "communicating costs. cpu: processor time of all threads of all ranks for one step. Times are means over the "
    "ranks, medians over all steps of all rounds, with p10 and p90.\n\n"
    "joined: from the first agent's call to the last one's return, when all agents join at the same moment. wait: of "
    "the median agent. cpu and memory: of the coordinator's process; the memory before the agents came and with "
    "them.\n\n"
    "nodes: simulated ones keep a coordinator busy (--busy). arrived: how long they took to come. joined: from the "
    "last rank's join to the last answer. joining: processor time of the coordinator's process until then. load: the "
    "same a second afterwards, in percent of a core; it does not count the time that other processes take. simulator: "
    "the same of the process that plays the nodes, on the same cores. beat: from a node's heartbeat to its answer, "
    "which waits for other processes, too. memory: the most of the coordinator's process."
)

#: The first column of a table -> the title of its section.
_TITLES = {"ranks": "Steps", "agents": "A coordinator", "nodes": "A coordinator's nodes"}


@dataclass(frozen=True)
class StepCost:
    """The cost of a step for one runner: seconds, and processor seconds of all ranks."""

    runner: str
    ranks: int
    tensors: int
    step: Summary
    local: float
    cpu: float

    @property
    def added(self) -> float:
        """The time that communication adds to the step."""
        return self.step.median - self.local


def step_costs(report: Report) -> list[StepCost]:
    """Returns one cost for every runner and row, ordered by ranks, tensors, runner."""
    steps = [sample for sample in report.samples if sample.metric == "step"]
    keys = {(int(s.row["ranks"]), int(s.row["tensors"]), list(RUNNERS).index(s.runner)) for s in steps}
    found = []
    for ranks, tensors, place in sorted(keys):
        runner = list(RUNNERS)[place]
        step, local, cpu = (
            _summary(report, runner, metric, ranks=ranks, tensors=tensors) for metric in ("step", "local", "cpu")
        )
        found.append(StepCost(runner, ranks, tensors, step, local.median, cpu.median))
    return found


def _summary(report: Report, runner: str, metric: str, **row: Cell) -> Summary:
    samples = select(report.samples, runner=runner, metric=metric, **row)
    return summarise([value for sample in samples for value in sample.values])


def overview(report: Report) -> list[Table]:
    """The tables: steps, agents that join, nodes that keep a coordinator busy."""
    costs = step_costs(report)
    tables = [_step_table(costs, report)] if costs else []
    tables += [_join_table(report)] if _agents(report) else []
    nodes = sorted({(int(s.row["nodes"]), int(s.row["ranks"])) for s in report.samples if s.runner == NODES})
    return [*tables, _nodes_table(nodes, report)] if nodes else tables


def _step_table(costs: Sequence[StepCost], report: Report) -> Table:
    columns = ("ranks", "tensors", "runner", "step", "p10", "p90", "local", "added", "cpu", "samples")
    rows = tuple(
        (
            str(cost.ranks),
            str(cost.tensors),
            cost.runner,
            *(seconds_text(value) for value in (cost.step.median, cost.step.p10, cost.step.p90, cost.local)),
            seconds_text(cost.added) if cost.added > 0 else "-",
            seconds_text(cost.cpu),
            str(cost.step.count),
        )
        for cost in costs
    )
    total = bytes_text(int(next(s.row["total_bytes"] for s in report.samples if s.metric == "step")))
    title = f"cost of a step, {total} bytes of gradients"
    return Table(title, columns, rows, frozenset(columns) - {"runner"}, " ".join(report.notes))


def _agents(report: Report) -> list[int]:
    return sorted({int(sample.row["agents"]) for sample in report.samples if sample.runner == COORDINATOR})


def _join_table(report: Report) -> Table:
    columns = ("agents", "joined", "p10", "p90", "wait", "cpu", "memory before", "with them", "rounds")
    rows = []
    for agents in _agents(report):
        joined, wait, cpu = (_summary(report, COORDINATOR, m, agents=agents) for m in ("join", "wait", "cpu"))
        idle, full = (_summary(report, COORDINATOR, "memory", agents=agents, state=s) for s in ("idle", "full"))
        rows.append(
            (
                str(agents),
                *(seconds_text(value) for value in (joined.median, joined.p10, joined.p90, wait.median, cpu.median)),
                f"{idle.median / (1 << 20):.1f} MiB",
                f"{full.median / (1 << 20):.1f} MiB",
                str(joined.count),
            )
        )
    return Table("agents that join one coordinator at once", columns, tuple(rows), frozenset(columns))


def _nodes_table(nodes: Sequence[tuple[int, int]], report: Report) -> Table:
    columns = (
        *("nodes", "ranks each", "arrived", "joined", "joining", "load", "simulator", "requests"),
        *("beat", "p99", "longest", "memory"),
    )
    rows = []
    for count, ranks in nodes:
        arrived, joined, joining, load, simulator, requests, memory = (
            _summary(report, NODES, metric, nodes=count, ranks=ranks).median
            for metric in ("arrived", "joined", "joining", "load", "simulator", "requests", "memory")
        )
        beats = (
            _summary(report, NODES, "beat", nodes=count, ranks=ranks, percentile=name).maximum
            for name in ("median", "p99", "longest")
        )
        rows.append(
            (
                str(count),
                str(ranks),
                *map(seconds_text, (arrived, joined, joining)),
                f"{load:.0%}",
                f"{simulator:.0%}",
                f"{requests:.0f}/s",
                *map(seconds_text, beats),
                f"{memory / (1 << 20):.0f} MiB",
            )
        )
    return Table("a coordinator with so many nodes", columns, tuple(rows), frozenset(columns))


def sections(report: Report) -> list[Section]:
    """The parts of the page."""
    result = [Section("How to read this", _EXPLANATION)]
    plots = {"ranks": _step_plots, "agents": _join_plots} if plots_available() else {}
    if not plots:
        result.append(Section("Plots", "There are none: matplotlib is missing (pip install 'tfcollective[bench]')."))
    for table in overview(report):
        draw = plots.get(table.columns[0])
        title = _TITLES[table.columns[0]]
        result.append(Section(title, tables=(table,), plots=tuple(draw(report)) if draw else ()))
    return result


def _step_plots(report: Report) -> Iterator[Plot]:
    """Against ranks, for every number of tensors; against tensors, for every number of ranks."""
    costs = step_costs(report)
    for tensors in dict.fromkeys(cost.tensors for cost in costs):
        mine = [cost for cost in costs if cost.tensors == tensors]
        yield _plot(f"step-{tensors}-tensors", f"A step of {tensors} tensors", mine, "ranks", lambda cost: cost.ranks)
    for ranks in dict.fromkeys(cost.ranks for cost in costs):
        mine = [cost for cost in costs if cost.ranks == ranks]
        yield _plot(f"step-{ranks}-ranks", f"A step on {ranks} ranks", mine, "tensors", lambda cost: cost.tensors)


def _plot(name: str, title: str, costs: Sequence[StepCost], x_label: str, x_of: Callable[[StepCost], int]) -> Plot:
    lines = []
    for runner in RUNNERS:
        mine = [cost for cost in costs if cost.runner == runner]
        if mine:
            low, middle, high = (
                tuple(getattr(cost.step, place) * 1e3 for cost in mine) for place in ("p10", "median", "p90")
            )
            lines.append(Series(runner, tuple(float(x_of(cost)) for cost in mine), middle, low, high))
    return draw_lines(
        name,
        title,
        lines,
        x_label=x_label,
        y_label="ms, median with p10 to p90",
        names=tuple(RUNNERS),
        bytes_on_x=False,
    )


def _join_plots(report: Report) -> Iterator[Plot]:
    agents = _agents(report)
    times = [_series(report, name, metric, agents) for name, metric in (("joined", "join"), ("cpu", "cpu"))]
    memory = [
        _series(report, name, "memory", agents, 1 / (1 << 20), state=state)
        for name, state in (("before", "idle"), ("with them", "full"))
    ]
    for name, title, lines, unit, log in (
        ("join-time", "Agents that join one coordinator at once", times, "s", True),
        ("join-memory", "Memory of the coordinator's process", memory, "MiB", False),
    ):
        names = tuple(line.name for line in lines)
        label = f"{unit}, median with p10 to p90"
        yield draw_lines(name, title, lines, x_label="agents", y_label=label, names=names, log_y=log, bytes_on_x=False)


def _series(report: Report, name: str, metric: str, agents: Sequence[int], factor: float = 1.0, **row: Cell) -> Series:
    found = [_summary(report, COORDINATOR, metric, agents=count, **row) for count in agents]
    low, middle, high = (tuple(getattr(s, place) * factor for s in found) for place in ("p10", "median", "p90"))
    return Series(name, tuple(map(float, agents)), middle, low, high)
