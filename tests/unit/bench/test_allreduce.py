import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_reports import make_report

from tfcollective._base.codec import encode
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._cli import main
from tfcollective_bench import experiment
from tfcollective_bench.allreduce import measure as loop
from tfcollective_bench.allreduce import run
from tfcollective_bench.allreduce.analysis import algbw, busbw, figures, labels, overview, sections
from tfcollective_bench.allreduce.options import AllreduceOptions, sizes_between
from tfcollective_bench.allreduce.points import Point, iterations_for, make_points
from tfcollective_bench.allreduce.run import samples_of
from tfcollective_bench.allreduce.runners import RUNNERS, Case, case_name, chosen, variant_of
from tfcollective_bench.baselines import Baselines, find_baselines
from tfcollective_bench.interleave import Failure
from tfcollective_bench.model import RunnerState, Sample

FOUND = Baselines(Path("/l.so"), Path("/p/a"), Path("/p/m"), "/usr/bin/mpirun", "/m/python", "/h/python", True)
NOTHING = Baselines(Path("/l.so"), None, None, None, None, None, False)
ROW = {"bytes": 1 << 20, "ranks": 2, "dtype": "float32", "cache": "hot"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runners", "c,gloo"], "unknown runner 'gloo': expected one of c, ctypes"),
        (["--sizes", "4,x"], "not a size: 'x'"),
        (["--sizes", "0"], "not a size: '0'"),
        (["--sizes", ","], "--sizes"),
        (["--sizes", "4", "--min", "4"], "cannot be combined"),
        (["--min", "4M", "--max", "4K"], "--min 4M is above --max 4K"),
        (["-np", "two"], "-np"),
        (["-np", "0"], "-np: at least one number, each 1 or more"),
        (["--dtype", "complex64"], "--dtype: 'complex64' is not one of float32"),
        (["--transport", "rdma"], "--transport"),
        (["--caches", "warm"], "--caches"),
        (["--rounds", "0"], "'--rounds': 0 is not in the range x>=1"),
        (["--link", "wifi"], "--link: 'wifi' is neither loopback nor a rate such as 1gbit"),
        (["--link", "none"], "--link: 'none' is neither"),
        (["--link", ","], "--link: at least one"),
        (["--horovod-python", "/no/python"], "/no/python does not exist"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(["bench", "allreduce", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_sizes_between():
    assert sizes_between(4, 64) == (4, 16, 64)
    assert sizes_between(4, 100) == (4, 16, 64, 100)
    assert sizes_between(8, 8) == (8,)


def test_points_survive_argv_with_fewer_large_iterations():
    points = make_points((4, 1 << 20, 64 << 20), ("hot", "cold"), 200)
    assert [Point.parse(str(point)) for point in points] == list(points)
    assert [point.iterations for point in points] == [200, 50, 50, 50, 8, 8]
    assert iterations_for(4, 3, "hot") == 8
    with pytest.raises(ValueError, match="hot, cold"):
        Point.parse("warm:4:1")


def test_what_is_missing_says_how_to_get_it():
    hints = {name: runner.missing(NOTHING) for name, runner in RUNNERS.items()}
    assert hints["ctypes"] == hints["numpy"] == ""
    assert "tools/baselines.sh horovod" in hints["horovod"]
    assert "tools/baselines.sh mpi" in hints["openmpi"]
    assert "pip install" in hints["tensorflow"]
    assert "tools/baselines.sh" in hints["c"]
    assert all(runner.missing(FOUND) == "" for runner in RUNNERS.values())


def test_every_runner_has_a_command_with_its_points():
    options = AllreduceOptions(ranks=(2,), dtype="float64")
    for name, runner in RUNNERS.items():
        case = Case(name, 3, "tcp" if runner.ours else "")
        variant = variant_of(runner, case, FOUND, options, make_points((4,), ("hot",), 10), 64)
        assert variant.argv[-1] == "hot:4:10"
        assert "float64" in variant.argv
        assert "3" in variant.argv
        assert ("tcp" in variant.argv) == runner.ours
        assert case_name(case).startswith(f"{name}, 3 ranks")
        assert "TF_CONFIG" in variant.unset


def test_the_ranks_do_not_find_another_source_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = Case("numpy", 2, "auto")
    assert variant_of(RUNNERS["numpy"], case, FOUND, AllreduceOptions(), (), 0).cwd is None
    (tmp_path / "tfcollective").mkdir()
    assert variant_of(RUNNERS["numpy"], case, FOUND, AllreduceOptions(), (), 0).cwd == os.sep


def test_shared_memory_can_be_demanded():
    case = Case("c", 2, "shm")
    variant = variant_of(RUNNERS["c"], case, FOUND, AllreduceOptions(), (), 0)
    assert "--require-shm" in variant.argv
    assert variant.argv[variant.argv.index("--transport") + 1] == "auto"


def test_runners_are_chosen_in_their_tables_order():
    assert [runner.name for runner in chosen(("op", "c"))] == ["c", "op"]
    assert len(chosen(())) == len(RUNNERS)
    with pytest.raises(ConfigError, match="unknown runner 'x'"):
        chosen(("x",))


def test_baselines_are_found_where_they_are(tmp_path):
    for name in ("programs/allreduce", "programs/allreduce_mpi", "horovod/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    found = find_baselines(str(tmp_path))
    assert found.program == tmp_path / "programs/allreduce"
    assert found.horovod_python == str(tmp_path / "horovod/bin/python")
    (tmp_path / "horovod/bin/python").write_text("#!/bin/sh\nexit 1\n")
    assert find_baselines(str(tmp_path)).horovod_python != found.horovod_python


def test_bandwidths_are_those_of_nccl_tests():
    assert algbw(1000, 0.5) == 2000
    assert busbw(1000, 0.5, 2) == 2000
    assert busbw(1000, 0.5, 4) == 3000
    assert busbw(1000, 0.5, 1) == 0


def content(**more):
    return {"cache": "hot", "bytes": 1 << 20, "times": [1e-4, 3e-4], "cpu": 5e-4, "overhead": 1e-6, **more}


def make_allreduce_report():
    samples = [
        *samples_of(Case("openmpi", 2), "float32", 0, content()),
        *samples_of(Case("c", 2, "tcp"), "float32", 0, content(times=[2e-4])),
        *samples_of(Case("c", 2, "auto"), "float32", 0, content(times=[5e-5])),
        *samples_of(Case("c", 2, "auto"), "float32", 1, content(times=[7e-5], cpu=7e-4)),
        *samples_of(Case("c", 4, "auto"), "float32", 0, content(bytes=4)),
        *samples_of(Case("c", 2, "auto"), "float32", 0, content(cache="cold")),
    ]
    return replace(make_report(), samples=tuple(samples))


def test_lines_become_samples():
    latency, cpu, overhead = samples_of(Case("op", 2, "auto"), "float32", 3, content())
    assert latency == Sample("op", {**ROW, "transport": "auto"}, "latency", "s", (1e-4, 3e-4), 3)
    assert (cpu.metric, cpu.values) == ("cpu", (5e-4,))
    assert (overhead.metric, overhead.values) == ("overhead", (1e-6,))
    assert next(samples_of(Case("horovod", 2), "float32", 0, content())).row == ROW


def test_samples_become_figures_and_tables():
    report = make_allreduce_report()
    assert labels(report) == ("c", "c (tcp)", "openmpi")
    first = figures(report)[0]
    assert (first.label, first.ranks, first.cache, first.bytes, first.latency.count) == ("c", 2, "hot", 1 << 20, 2)
    assert first.latency.median == pytest.approx(6e-5)
    assert first.cpu == pytest.approx(6e-4)
    assert first.busbw == pytest.approx((1 << 20) / 6e-5)
    tables = overview(report)
    assert [table.title for table in tables] == [
        "median latency, 2 ranks, hot",
        "median latency, 2 ranks, cold",
        "median latency, 4 ranks, hot",
    ]
    assert tables[0].rows == (("1M", "60.0 us", "200 us", "200 us"),)


def test_the_page_has_world_sections_and_plots():
    pytest.importorskip("matplotlib")
    parts = sections(make_allreduce_report())
    assert [part.title for part in parts] == [
        "How to read this",
        "2 ranks, hot",
        "2 ranks, cold",
        "4 ranks, hot",
        "Scaling",
        "All figures",
    ]
    names = [plot.name for part in parts for plot in part.plots]
    assert len(names) == len(set(names)) == 3 * 3 + 2


class Alone:
    """A world of one rank; its result is off by `error`."""

    rank, size = 0, 1

    def __init__(self, error=0.0):
        self.error = error
        self.calls = []

    def operation(self, count, dtype):
        self.array = np.empty(count, dtype)
        return self

    def write(self, value):
        self.calls.append("write")
        self.array.fill(value)

    def run(self):
        self.calls.append("run")
        self.array[-1] += self.error

    def extremes(self):
        return float(self.array.min()), float(self.array.max())

    def barrier(self):
        self.calls.append("barrier")

    def total(self, values):
        return list(values)

    def empty_call(self):
        pass


def test_the_loop_rewrites_inputs_and_counts(capsys):
    world = Alone()
    loop.measure(world, loop.parse_arguments(["--flush", "1000", "hot:4:8", "cold:4096:3"]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["cache"], line["bytes"], len(line["times"])) for line in lines] == [("hot", 4, 8), ("cold", 4096, 3)]
    assert world.calls[:6] == ["write", "barrier", "run"] * 2
    assert world.calls.count("write") == 2 * 5 + 8 + 3


def test_a_wrong_result_ends_the_run():
    with pytest.raises(SystemExit, match=r"wrong result on rank 0: elements from 0\.0 to 1\.0, not 0"):
        loop.measure(Alone(error=1.0), loop.parse_arguments(["hot:4096:8"]))


def test_the_loop_refuses_what_is_no_point(capsys):
    with pytest.raises(SystemExit):
        loop.parse_arguments(["warm:4:8"])


def test_ranks_on_hosts_of_their_own():
    case = Case("ctypes", 4, "auto", "1gbit")
    variant = variant_of(RUNNERS["ctypes"], case, FOUND, AllreduceOptions(), (), 0)
    assert "tfcollective_bench.testbed_launcher" in variant.argv
    assert case_name(case) == "ctypes, 4 ranks, 1gbit"
    assert next(samples_of(case, "float32", 0, content())).row["link"] == "1gbit"
    with pytest.raises(ConfigError, match="--link"):
        AllreduceOptions(transports=("tcp",), links=("1gbit",))


class Watch:
    """Takes every event and does nothing."""

    def __init__(self, turns):
        del turns

    def __enter__(self):
        return lambda event: None

    def __exit__(self, *reason):
        return None


def test_without_root_the_loopback_part_runs(monkeypatch):
    seen = []

    def crash(variants, rounds, until=None):
        seen.extend(variant.name for variant in variants)
        return (Failure(variant.name, 0, "crashed", "boom") for variant in variants)

    monkeypatch.setattr(experiment, "interleave", crash)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    options = AllreduceOptions(ranks=(2, 3), runners=("ctypes", "openmpi"), links=("loopback", "1gbit"), mpi_python="/")
    report = run.run_allreduce(options, ["x"], Watch)
    assert [name for name in seen if name.startswith("ctypes")] == ["ctypes, 2 ranks", "ctypes, 3 ranks"]
    states = {status.runner: (status.state, status.detail) for status in report.statuses}
    assert states["link 1gbit"] == (RunnerState.MISSING, "network namespaces need Linux and root")
    assert states["ctypes"][0] is RunnerState.FAILED
    with pytest.raises(UnsupportedError, match=r"need Linux and root \(the link loopback needs neither"):
        run.run_allreduce(replace(options, links=("1gbit",)), ["x"], Watch)


def test_targets_are_read_from_reports(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_bytes(encode(make_allreduce_report()))
    assert main(["bench", "targets", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "not measured" in capsys.readouterr().out
    assert (tmp_path / "out" / "benchmarks.html").exists()
    # 1 MiB: c takes 60 us of the 64 KiB - 1 MiB row, openmpi 200 us; nothing else was measured
    assert main(["bench", "targets", str(path), "--strict"]) == 0
    slow = [
        replace(s, values=tuple(9 * v for v in s.values)) if s.runner == "c" else s
        for s in make_allreduce_report().samples
    ]
    path.write_bytes(encode(replace(make_allreduce_report(), samples=tuple(slow))))
    assert main(["bench", "targets", str(path), "--strict"]) == 1
    assert main(["bench", "targets", str(tmp_path / "none.json")]) == 64
    assert main(["bench", "targets", "--only", "x"]) == 64
