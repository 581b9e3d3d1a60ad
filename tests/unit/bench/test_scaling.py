"""The scaling benchmark: options, commands, samples, tables; and agents that join a coordinator."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_reports import make_report

from tfcollective._base.errors import ConfigError, ResourceExhaustedError
from tfcollective._cli import main
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.scaling import joining
from tfcollective_bench.scaling.options import ScalingOptions
from tfcollective_bench.scaling.pages import overview, sections, step_costs
from tfcollective_bench.scaling.run import samples_of
from tfcollective_bench.scaling.runners import RUNNERS, Case, cases_of, chosen, hint_for, variant_of

FOUND = Baselines(Path("/l.so"), None, None, None, None, "/h/python", True)
NOTHING = Baselines(Path("/l.so"), None, None, None, None, None, False)
OPTIONS = ScalingOptions(ranks=(2, 8), tensors=(10, 100), agents=(5, 7), nodes=(3,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runners", "mpi"], "unknown runner 'mpi': expected one of ours, horovod"),
        (["-np", "two"], "-np: expected numbers"),
        (["-np", "0"], "-np: at least one number, each 1 or more"),
        (["--tensors", "1,x"], "--tensors: expected numbers"),
        (["--tensors", "1000", "--bytes", "1K"], "--bytes: 1000 tensors need at least 4000 bytes"),
        (["--bytes", "much"], "not a size: 'much'"),
        (["--agents", "100000"], "--agents: numbers from 1 to 4000"),
        (["--nodes", "9000"], "--nodes: numbers from 1 on, with 64000 ranks at most"),
        (["--ranks-per-node", "0"], "--ranks-per-node: expected a number above 0, got 0"),
        (["--rounds", "0"], "--rounds: expected a number above 0, got 0"),
        (["--horovod-python", "/no/python"], "/no/python does not exist"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(["bench", "scaling", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_what_is_missing_says_how_to_get_it():
    assert "tools/baselines.sh horovod" in hint_for("horovod", NOTHING)
    assert "pip install" in hint_for("ours", NOTHING)
    assert hint_for("coordinator", NOTHING) == ""
    assert all(hint_for(runner, FOUND) == "" for runner in RUNNERS)
    assert chosen(()) == tuple(RUNNERS)
    with pytest.raises(ConfigError):
        chosen(("ours", "gloo"))


def test_every_case_has_its_command():
    assert [case.name for case in cases_of("ours", OPTIONS)] == ["ours, 2 ranks", "ours, 8 ranks"]
    assert [case.name for case in cases_of("coordinator", OPTIONS)] == [
        "coordinator, 5 agents",
        "coordinator, 7 agents",
    ]
    ours = variant_of(Case("ours", 8), FOUND, OPTIONS)
    assert ours.argv[ours.argv.index("-np") + 1] == "8"
    assert ours.argv[-5:] == ("ours", "30", str(4 << 20), "10", "100")
    assert ours.env["TF_NUM_INTRAOP_THREADS"].isdigit()
    assert "TF_CONFIG" in ours.unset
    horovod = variant_of(Case("horovod", 2), FOUND, OPTIONS)
    assert horovod.argv[0] == "/h/python"
    assert horovod.argv[-5:-3] == ("horovod", "30")
    assert variant_of(Case("coordinator", 7), FOUND, OPTIONS).argv[-2:] == ("7", "300")
    assert [case.name for case in cases_of("nodes", OPTIONS)] == ["nodes, 3 nodes"]
    assert variant_of(Case("nodes", 3), FOUND, OPTIONS).argv[-4:] == ("3", "8", "60", "300")


def steps_line(tensors, step, local):
    return {"tensors": tensors, "times": [step, 2 * step, 3 * step], "local": [local] * 3, "cpu": step}


def joining_line(agents, seconds):
    return {
        "agents": agents,
        "seconds": seconds,
        "median_wait": seconds / 2,
        "server_cpu": 0.5,
        "server_bytes": {"idle": 1 << 20, "full": 3 << 20},
    }


def nodes_line(nodes, load):
    return {
        "nodes": nodes,
        "ranks": 8,
        "arrived": 4.0,
        "joined": 0.25,
        "joining": 0.5,
        "load": load,
        "simulator": 0.5,
        "requests": 100.0,
        "beat": {"median": 0.001, "p99": 0.01, "longest": 0.1},
        "memory": 64 << 20,
    }


def scaling_report():
    samples = [
        *samples_of(Case("ours", 2), OPTIONS, 0, steps_line(10, 1e-3, 5e-4)),
        *samples_of(Case("ours", 2), OPTIONS, 0, steps_line(100, 4e-3, 5e-4)),
        *samples_of(Case("ours", 8), OPTIONS, 0, steps_line(10, 8e-3, 9e-2)),
        *samples_of(Case("horovod", 2), OPTIONS, 0, steps_line(10, 2e-3, 5e-4)),
        *samples_of(Case("coordinator", 5), OPTIONS, 0, joining_line(5, 0.1)),
        *samples_of(Case("coordinator", 7), OPTIONS, 0, joining_line(7, 0.2)),
        *samples_of(Case("nodes", 3), OPTIONS, 0, nodes_line(3, 0.25)),
    ]
    return replace(make_report(), samples=tuple(samples))


def test_costs_are_medians_and_ordered():
    costs = step_costs(scaling_report())
    assert [(cost.ranks, cost.tensors, cost.runner) for cost in costs] == [
        (2, 10, "ours"),
        (2, 10, "horovod"),
        (2, 100, "ours"),
        (8, 10, "ours"),
    ]
    assert costs[0].step.median == pytest.approx(2e-3)
    assert costs[0].added == pytest.approx(1.5e-3)


def test_tables_and_page():
    report = scaling_report()
    steps, agents, nodes = overview(report)
    assert steps.title == "cost of a step, 4M bytes of gradients"
    added = [row[steps.columns.index("added")] for row in steps.rows]
    assert added == ["1.50 ms", "3.50 ms", "7.50 ms", "-"]
    assert agents.rows[1] == ("7", "200 ms", "200 ms", "200 ms", "100 ms", "500 ms", "1.0 MiB", "3.0 MiB", "1")
    assert nodes.rows == (
        ("3", "8", "4.00 s", "250 ms", "500 ms", "25%", "50%", "100/s", "1.00 ms", "10.0 ms", "100 ms", "64 MiB"),
    )
    names = [section.title for section in sections(report)]
    assert names[0] == "How to read this"
    assert names[-3:] == ["Steps", "A coordinator", "A coordinator's nodes"]
    only = replace(report, samples=tuple(s for s in report.samples if s.runner == "coordinator"))
    assert [table.columns[0] for table in overview(only)] == ["agents"]


def test_plots_show_every_runner():
    pytest.importorskip("matplotlib")
    plots = {plot.name: plot for section in sections(scaling_report()) for plot in section.plots}
    assert {"step-10-tensors", "step-100-tensors", "step-2-ranks", "step-8-ranks", "join-time", "join-memory"} == set(
        plots
    )


def test_agents_join_and_tell_what_it_cost():
    # In a process of its own: multiprocessing keeps helpers until its process ends.
    command = [sys.executable, "-m", "tfcollective_bench.scaling.joining", "60", "60"]  # two crews
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    found = json.loads(done.stdout)
    assert found["agents"] == 60
    assert 0 < found["median_wait"] <= found["seconds"]
    assert found["server_bytes"]["full"] >= found["server_bytes"]["idle"] > 0


def test_simulated_nodes_tell_what_they_cost():
    command = [sys.executable, "-m", "tfcollective_bench.scaling.nodes", "20", "2", "2", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    found = json.loads(done.stdout)
    assert (found["nodes"], found["ranks"]) == (20, 2)
    assert found["load"] > 0
    assert found["requests"] > 0
    assert 0 < found["beat"]["median"] <= found["beat"]["p99"] <= found["beat"]["longest"]
    assert found["memory"] > 0


def test_too_few_files_say_what_is_needed(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(ResourceExhaustedError, match="264 open files are needed and 100 are allowed"):
        joining.join_together(100, 5.0)
