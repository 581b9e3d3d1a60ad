"""The chaos benchmark: which fault comes when, what counts as progress, and how the job is judged."""

import json
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from bench_reports import make_report
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcollective._cli import main
from tfcollective_bench.chaos import model
from tfcollective_bench.chaos.faults import FaultKind, schedule
from tfcollective_bench.chaos.job import Usage
from tfcollective_bench.chaos.options import ChaosOptions
from tfcollective_bench.chaos.pages import overview, sections
from tfcollective_bench.chaos.progress import Progress, Strike, goodput, outcomes, steps_per_second, stood_still
from tfcollective_bench.chaos.run import Check, compare, curve_places, leaks
from tfcollective_bench.journal import DIES, READY, STARTS, STEP, Line
from tfcollective_bench.model import Sample


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2"], "two ranks are lost at once and one has to stay: 3 or more"),
        (["--framework", "jax"], "--framework: expected one of numpy, tensorflow, got 'jax'"),
        (["--minutes", "0"], "--minutes: expected a number above 0, got 0"),
        (["--every", "-1"], "--every: expected a number above 0, got -1"),
        (["--seed", "-1"], "--seed: expected 0 or more"),
        (["--references", "1"], "--references: expected 2 or more"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(["bench", "chaos", *arguments]) == 64
    assert message in capsys.readouterr().err


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_seed_determines_the_faults():
    assert schedule(7, 3600, 15) == schedule(7, 3600, 15)
    assert schedule(7, 3600, 15) != schedule(8, 3600, 15)


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(1, 3600), st.floats(1, 60), st.integers(0, 2))
def test_faults_are_ordered_with_equally_frequent_kinds(seed, seconds, every_s, leaves):
    faults = schedule(seed, seconds, every_s, leaves)
    times = [fault.at for fault in faults]
    assert times == sorted(times)
    assert all(0 < at < seconds for at in times)
    assert [fault.number for fault in faults] == list(range(len(faults)))
    counts = Counter(fault.kind for fault in faults)
    assert counts.pop(FaultKind.LEAVE, 0) <= leaves
    others = [counts[kind] for kind in FaultKind if kind is not FaultKind.LEAVE]
    assert max(others) - min(others) <= 1


def test_faults_have_the_requested_average_distance():
    faults = schedule(3, 100_000, 15)
    assert 100_000 / len(faults) == pytest.approx(15, rel=0.05)


def test_every_kind_spares_a_rank_with_state():
    ends = {FaultKind.KILL_TWO: 2, FaultKind.KILL_SYNC: 2, FaultKind.KILL_CONNECT: 2}
    assert all(kind.ranks > ends.get(kind, int(kind.ends_a_rank)) for kind in FaultKind)
    assert len(FaultKind) >= 10


# ---- model -----------------------------------------------------------------------------------------------------------


def test_a_step_is_independent_of_world_size():
    weights = np.random.default_rng(0).normal(size=model.DIMENSION)
    whole = model.gradient(weights, 1, 5, 0, 1)
    for size in (2, 3, 4, 7):
        parts = [model.gradient(weights, 1, 5, rank, size) for rank in range(size)]
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-12)
    assert not np.allclose(whole, model.gradient(weights, 2, 5, 0, 1))
    assert not np.allclose(whole, model.gradient(weights, 1, 6, 0, 1))


def test_the_loss_falls_as_its_known_curve_says():
    """With a rate that falls as 2 / step, what is left of the loss falls as 1 / step."""
    found = model.replay(1, [3] * 4000, (1000, 2000, 4000))
    rest = [loss - model.NOISE**2 for loss in found.losses]
    assert 1.4 < rest[0] / rest[1] < 2.8
    assert 1.4 < rest[1] / rest[2] < 2.8


def test_the_load_reflects_each_steps_ranks():
    found = model.replay(1, [3, 2, 3])
    assert found.load == (0 + 1 + 2) + (1 + 2) + (2 + 3 + 4)
    assert found.load != model.replay(1, [3, 3, 2]).load


# ---- progress --------------------------------------------------------------------------------------------------------


def step(task, at, generation, size, number, rank=0):
    return Line(task, 1, STEP, at, generation, rank, size, number)


def test_the_newer_world_counts_for_a_step():
    progress = Progress()
    progress.take([step("worker:0", 1.0, 1, 3, 1), step("worker:0", 2.0, 1, 3, 2)])
    progress.take([step("worker:1", 1.1, 1, 3, 1), step("worker:1", 3.0, 2, 2, 2), step("worker:1", 4.0, 2, 2, 3)])
    assert (progress.steps, progress.counted, progress.again, progress.missing) == (3, [3, 2, 2], 1, [])
    assert progress.completions == [1.0, 2.0, 3.0, 4.0]
    assert progress.first_steps == {1: 1.0, 2: 3.0}
    assert progress.generation == 2


def test_a_step_that_no_rank_did_is_missing():
    progress = Progress()
    progress.take([step("worker:0", 1.0, 1, 3, 1), step("worker:0", 2.0, 1, 3, 3)])
    assert progress.missing == [2]


def test_how_long_processes_took_to_start():
    progress = Progress()
    progress.take([Line("worker:0", 1, STARTS, 1.0), Line("worker:0", 1, READY, 2.5, 1, 0, 3, 0)])
    progress.take([Line("worker:1", 2, STARTS, 1.0), Line("worker:1", 2, DIES, 1.5)])
    assert progress.starts() == [1.5]


def steady(seconds, rate, size=3, begin=0.0, generation=1, first=1):
    progress = Progress()
    count = round(seconds * rate)
    progress.take(step("worker:0", begin + i / rate, generation, size, first + i) for i in range(count))
    return progress


def test_goodput_is_relative_to_the_undisturbed_rate():
    calm = [steady(10, 50), steady(10, 30)]
    assert steps_per_second(calm[0]) == pytest.approx(50)
    disturbed = steady(5, 40)
    # Nothing for 5 s, and ten steps once more.
    disturbed.take(step("worker:1", 10 + i / 40, 2, 2, 191 + i) for i in range(210))
    assert disturbed.again == 10
    assert goodput(disturbed, calm) == pytest.approx(399 / (10 + 209 / 40) / 40)
    assert goodput(disturbed, []) == 0.0
    assert goodput(Progress(), calm) == 0.0


def test_a_much_longer_step_is_a_standstill():
    progress = steady(8, 10)
    assert stood_still(progress) == pytest.approx(0.0, abs=1e-9)
    progress.take([step("worker:0", 10.0, 2, 2, 81)])
    assert stood_still(progress) == pytest.approx(2.0 / 10, rel=1e-2)
    assert stood_still(Progress()) == 0.0


def test_what_a_fault_did_follows_from_the_steps():
    progress = steady(10, 10)
    progress.take(step("worker:0", 10.5 + i / 10, 2, 2, 101 + i) for i in range(30))
    progress.take(step("worker:0", 13.6 + i / 10, 3, 3, 131 + i) for i in range(30))
    lost = Strike(0, "kill a rank", 9.9, 9.95, 3, 1, ("worker:1",), True)
    slow = Strike(1, "slow rank", 12.0, 12.05, 2, 2, ("worker:0",))
    skipped = replace(slow, number=2, skipped="only 1 ranks")
    first, second = outcomes([lost, slow, skipped], progress)
    assert (first.still, first.whole) == (pytest.approx(0.55), pytest.approx(3.65))
    assert (second.still, second.whole) == (pytest.approx(0.2), None)
    # What another fault does is its own, also where it begins before a step is completed.
    stopped = replace(slow, number=1, at=9.98)
    assert [one.still for one in outcomes([lost, stopped], progress)] == [pytest.approx(0.03), pytest.approx(0.52)]
    # Another rank is lost before the world is whole: its own loss counts.
    again = replace(lost, number=1, at=11.0, size=2, generation=2)
    assert [one.whole for one in outcomes([lost, again], progress)] == [None, pytest.approx(2.6)]


# ---- judgement -------------------------------------------------------------------------------------------------------

OPTIONS = ChaosOptions(references=3)


def result_of(sizes):
    found = model.replay(OPTIONS.seed, sizes)
    return {"step": len(sizes), "weights": found.weights.tolist(), "load": [found.load, found.load]}


def test_the_same_steps_have_the_same_result():
    sizes = [4] * 150 + [3] * 50
    found = compare(OPTIONS, sizes, result_of(sizes))
    assert found.difference < 1e-12
    assert len(found.references) == 3
    assert found.steps[-1] == 200
    assert found.curve[-1] == pytest.approx(found.loss)
    assert compare(OPTIONS, sizes, None) is None


@pytest.mark.parametrize("wrong", [[4] * 199, [4] * 201, [4] * 199 + [3]])
def test_extra_missing_and_other_worlds_steps_show(wrong):
    assert compare(OPTIONS, [4] * 200, result_of(wrong)).difference > 1e-6


def test_a_partly_restored_load_shows():
    result = result_of([4] * 20)
    result["load"][1] += 1
    assert compare(OPTIONS, [4] * 20, result).difference == 1.0


@settings(deadline=None)
@given(st.integers(1, 100_000))
def test_a_curve_has_few_points(steps):
    places = curve_places(steps)
    assert places[-1] == steps
    assert list(places) == sorted(set(places))
    assert len(places) <= 62


def test_what_grows_after_its_start_leaks():
    held = [Usage("launcher", at, 20 + int(at > 10) * 30, 5, 1 << 20) for at in range(0, 100, 5)]
    assert leaks(held) == []  # it had opened all that it needs before the first look that counts
    growing = [Usage("agent", at, 20 + at, 5, 1 << 20) for at in range(0, 100, 5)]
    assert leaks([*held, *growing]) == ["agent: 40 to 115 descriptors, 5 to 5 threads"]
    threads = [Usage("worker:0", at, 20, 5 + at, 1 << 20) for at in range(0, 100, 5)]
    assert len(leaks(threads)) == 1
    assert leaks(threads[:2]) == []
    alone = [Usage("worker:1", at, 9 if 10 < at < 40 else 21, 5, 1 << 20) for at in range(0, 100, 5)]
    assert leaks([*alone[:-1], Usage("worker:1", 100, 29, 9, 1 << 20)]) == []  # while it was alone it held less


# ---- report ----------------------------------------------------------------------------------------------------------


def chaos_report():
    sizes = [4] * 30
    row = {"ranks": 4}
    checks = [Check("goodput", "97.0%", "at least 90%", True), Check("loss", "1", "0", False)]
    fault = {"number": 0, "kind": "kill a rank", "at": 3.0, "victims": ["worker:1"], "ranks": 4, "generation": 1}
    attachments = {
        "checks": [asdict(check) for check in checks],
        "faults": [{**fault, "still": 0.2, "whole": 2.0}, {**fault, "number": 1, "still": 0.3, "whole": None}],
        "skipped": [{"number": 2, "kind": "SIGTERM", "why": "only 2 ranks"}],
        "worlds": [[0.0, 4], [3.0, 3], [5.0, 4]],
        "steps": [[0.0, 1], [10.0, 500]],
        "loss": asdict(compare(OPTIONS, sizes, result_of(sizes))),
        "usage": [],
        "changes": [],
        "stacks": "",
    }
    samples = (
        Sample("ours", {**row, "run": "undisturbed"}, "rate", "steps/s", (50.0,), 0),
        Sample("ours", {**row, "run": "disturbed"}, "rate", "steps/s", (48.5,), 1),
        Sample("ours", row, "stood still", "", (0.02,), 1),
        Sample("ours", row, "ranks on average", "", (3.9,), 1),
        Sample("ours", row, "steps done again", "", (2.0,), 1),
        Sample("ours", {**row, "fault": "kill a rank"}, "still", "s", (0.2,), 1),
        Sample("ours", {**row, "fault": "kill a rank"}, "still", "s", (0.3,), 1),
        Sample("ours", {**row, "fault": "kill a rank"}, "whole", "s", (2.0,), 1),
    )
    return replace(make_report(), title="Chaos", samples=samples, attachments=attachments, notes=("seed 1",))


def test_the_tables_show_verdicts_and_each_kind():
    judged, kinds = overview(chaos_report())
    assert [row[-1] for row in judged.rows] == ["pass", "MISS"]
    assert judged.note == (
        "undisturbed 50.0 steps/s; disturbed 48.5 steps/s; it stood still for 2.0% of the time; 3.90 ranks on average; "
        "2 steps were done again; seed 1"
    )
    assert kinds.rows == (("kill a rank", "2", "250 ms", "290 ms", "300 ms", "2.00 s", "2.00 s"),)


def test_the_page_has_all_faults_and_plots():
    found = {section.title: section for section in sections(chaos_report())}
    (table,) = found["All faults"].tables
    assert [row[0] for row in table.rows] == ["0", "1"]
    assert table.rows[1][-1] == "-"
    assert "2 (SIGTERM): only 2 ranks" in table.note
    assert [plot.name for plot in found["Plots"].plots] == ["worlds", "faults", "loss"]


def test_a_failed_job_shows_its_stacks():
    report = chaos_report()
    report = replace(report, attachments={**report.attachments, "loss": None, "stacks": "File x, line 1"})
    found = {section.title: section for section in sections(report)}
    assert found["What the ranks did when it went wrong"].text == "File x, line 1"
    assert [plot.name for plot in found["Plots"].plots] == ["worlds", "faults"]


def test_a_report_is_json():
    json.dumps(chaos_report().attachments)
