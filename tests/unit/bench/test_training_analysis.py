"""From training samples to figures and tables."""

import pytest

from tfcollective_bench.model import Hardware, Report, RunnerState, RunnerStatus, Sample, Versions
from tfcollective_bench.report import plots_available
from tfcollective_bench.training.analysis import (
    Curve,
    Scene,
    figures_of,
    ps_wins,
    scenes,
    sweep_table,
    training_table,
    wire_bound,
)
from tfcollective_bench.training.pages import overview, sections

HERE = Scene("mlp1024", 2, "loopback", "processes")
CORES = Scene("mlp1024", 2, "loopback", "cores")


def samples(runner, *rates, model="mlp1024", processes=2, link="loopback", view="processes", **extra):
    row = {"model": model, "ranks": processes, "link": link, "view": view, **extra}
    for number, rate in enumerate(rates):
        yield Sample(runner, row, "throughput", "samples/s", (rate, rate), number)
        yield Sample(runner, row, "loss", "nats", (2.0, 1.0, 0.5), number)
        yield Sample(runner, row, "trained", "samples", (0.0, 100.0, 200.0), number)
        yield Sample(runner, row, "seconds", "s", (1.0, 3.0), number)
        yield Sample(runner, row, "wire", "bytes/sample", (7.0,), number)
        yield Sample(runner, row, "cpu", "s/sample", (0.001,), number)


def report(*groups):
    return Report(
        title="t",
        command=("x",),
        hardware=Hardware("cpu", 2, 2, {}, 1, "k", (0.0, 0.0, 0.0)),
        versions=Versions({}),
        settings={},
        samples=tuple(sample for group in groups for sample in group),
        statuses=(RunnerStatus("ours", RunnerState.RAN),),
        started=0.0,
        finished=1.0,
    )


FULL = report(
    samples("ours", 100.0, 110.0),
    samples("ours-keras2", 200.0, 220.0),
    samples("horovod", 50.0, 55.0),
    samples("ps", 10.0, 10.0, servers=1, steps_per_execution=1),
    samples("ps", 40.0, 42.0, servers=2, steps_per_execution=10),
    samples("ps", 20.0, 20.0, view="cores", servers=1, steps_per_execution=1),
    samples("unconnected", 200.0, 220.0),
)


def cell(table, runner, column):
    (row,) = (row for row in table.rows if row[0] == runner)
    return row[table.columns.index(column)]


def test_scenes_put_equal_processes_first():
    assert scenes(FULL) == [HERE, CORES]


def test_servers_are_shown_by_their_best_variant():
    best = {scene: next(f for f in figures_of(FULL, scene) if f.runner == "ps") for scene in (HERE, CORES)}
    assert best[HERE].variant == "2 servers, 10 steps at a time"
    assert best[HERE].throughput.median == 41.0
    assert best[CORES].variant == "1 server, 1 step at a time"
    assert len(sweep_table(FULL, HERE).rows) == 2
    assert sweep_table(report(samples("ours", 1.0)), HERE) is None


def test_everyone_without_servers_is_in_both_views():
    names = ["ours", "ours-keras2", "horovod", "ps", "unconnected"]
    assert [figure.runner for figure in figures_of(FULL, CORES)] == names


def test_ratios_are_paired_and_of_the_same_tensorflow():
    table = training_table(FULL, HERE)
    assert cell(table, "horovod", "ours / it") == "4.00x"  # ours-keras2
    assert cell(table, "unconnected", "ours / it") == "0.50x"  # ours
    assert cell(table, "ours", "ours / it") == "-"
    assert cell(table, "ours", "of unconnected") == "50 %"


def test_losses_are_compared_at_equal_samples():
    curve = Curve((0.0, 100.0, 200.0), (0.0, 1.0, 2.0), (2.0, 1.0, 0.5))
    assert curve.at(150.0) == 0.75
    assert curve.at(200.0) == 0.5
    assert curve.at(201.0) is None
    figure = figures_of(FULL, HERE)[0]
    assert figure.curve.seconds == (0.0, 2.0, 5.0)  # the dropped epoch as long as the first


def test_the_wire_bound_is_that_of_a_ring():
    scene = Scene("mlp1024", 4, "1gbit", "processes")
    # Headers leave 1448 of 1514 bytes, and an idle link lets 128 KiB pass at once.
    seconds = (2 * 3 / 4 * 4 * 1_863_690 / (1448 / 1514) - (128 << 10)) / 125e6
    assert wire_bound(scene) == pytest.approx(4 * 64 / seconds)
    assert wire_bound(HERE) is None
    assert wire_bound(Scene("embedding", 4, "1gbit", "processes")) is None
    table = training_table(report(samples("ours", 700.0, link="1gbit", processes=4)), scene)
    assert table.rows[-1][0] == "wire bound"


def test_the_report_says_where_servers_win():
    assert list(ps_wins(FULL)) == []
    won = report(
        samples("ours", 100.0, model="embedding"),
        samples("ps", 300.0, model="embedding", servers=1, steps_per_execution=10),
    )
    (sentence,) = ps_wins(won)
    assert sentence == (
        "embedding, 2 processes, loopback, equal processes: parameter servers (1 server, 10 steps at a time) train 300 "
        "samples/s, ours 100."
    )
    assert sentence in sections(won)[1 + plots_available()].text


def test_pages_of_several_sizes_have_a_scaling_part():
    both = report(samples("ours", 100.0), samples("ours", 150.0, processes=4))
    assert len(overview(both)) == 2
    titles = [section.title for section in sections(both)]
    assert ("Scaling" in titles) == plots_available()
    assert [len(section.plots) for section in sections(FULL) if section.title == HERE.text] == [2 * plots_available()]
