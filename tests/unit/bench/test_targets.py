from dataclasses import replace

import pytest
from bench_reports import make_report

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective_bench.model import RunnerState, RunnerStatus, Sample
from tfcollective_bench.suite import PARTS, Circumstances, Part, merge, parts_named, run_suite
from tfcollective_bench.targets import ALLREDUCE, TARGETS, TRAINING, Outcome, Side, Target, evaluate
from tfcollective_bench.targets_report import missed, outcomes, targets_report
from tfcollective_bench.wire import ring_seconds

SMALL = Target(
    "small", "them", Side(("c", "ctypes"), {"transport": "auto"}), Side(("mpi",)), 2, 3, bytes_from=4, bytes_to=64
)


def latency(runner, size, *rounds, metric="latency", **cells):
    row = {"bytes": size, **cells}
    return [Sample(runner, row, metric, "s", (value,), number) for number, value in enumerate(rounds)]


def ours(size, *rounds, runner="c", **cells):
    return latency(runner, size, *rounds, transport="auto", **cells)


def test_the_worst_size_decides():
    samples = [*ours(4, 1.0, 2.0), *ours(64, 1.0, 2.0), *latency("mpi", 4, 9.0, 18.0), *latency("mpi", 64, 2.5, 5.0)]
    outcome = evaluate(SMALL, samples)
    assert outcome.ratio.median == 2.5
    assert outcome.where == "worst at 64"
    assert outcome.sides == "c / mpi"
    assert (outcome.met, outcome.aimed) == (True, False)


def test_sizes_outside_and_other_transports_do_not_count():
    samples = [*ours(4, 1.0), *ours(128, 9.0), *latency("c", 4, 99.0, transport="tcp"), *latency("mpi", 4, 1.5)]
    outcome = evaluate(SMALL, [*samples, *latency("mpi", 128, 1.0)])
    assert outcome.ratio.median == 1.5
    assert outcome.met is False


def test_medians_are_paired_by_round():
    samples = [*ours(4, 1.0, 100.0, 1.0), *latency("mpi", 4, 4.0, 400.0)]
    assert evaluate(SMALL, samples).ratio.count == 2
    assert evaluate(SMALL, samples).ratio.p10 == 4.0


def test_another_runner_replaces_a_missing_one():
    samples = [*ours(4, 1.0, runner="ctypes"), *latency("mpi", 4, 3.0)]
    assert evaluate(SMALL, samples).sides == "ctypes / mpi"
    assert evaluate(SMALL, samples).aimed is True


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "c or ctypes has not run"),
        (ours(4, 1.0), "mpi has not run"),
        ([*ours(4, 1.0), *latency("mpi", 64, 1.0)], "no round and row that both have"),
    ],
)
def test_an_unmeasured_target_is_no_miss(samples, why):
    outcome = evaluate(SMALL, samples)
    assert (outcome.met, outcome.aimed, outcome.ratio, outcome.where) == (None, None, None, why)
    assert missed([outcome]) == 0


def test_the_best_server_count_is_compared():
    target = Target("train", "ps", Side(("ours",)), Side(("ps",)), 2, None, metric="throughput")
    samples = [
        Sample("ours", {"model": "m"}, "throughput", "samples/s", (100.0,), 0),
        Sample("ps", {"model": "m", "servers": 1}, "throughput", "samples/s", (20.0,), 0),
        Sample("ps", {"model": "m", "servers": 2}, "throughput", "samples/s", (40.0,), 0),
    ]
    assert evaluate(target, samples).ratio.median == 2.5
    assert evaluate(target, samples).met is True


def test_the_ring_bound():
    target = next(target for target in ALLREDUCE if "namespaces" in target.work)
    size, ranks = 8 << 20, 4
    # Headers leave 1448 of 1514 bytes, and an idle link lets 128 KiB pass at once.
    bound = (2 * (ranks - 1) / ranks * size / (1448 / 1514) - (128 << 10)) / 125e6
    samples = latency(
        "ctypes", size, bound / 0.96, bound / 0.5, bound / 0.97, transport="auto", ranks=ranks, link="1gbit"
    )
    outcome = evaluate(target, samples)
    assert outcome.ratio.median == pytest.approx(0.96)
    assert outcome.met is True
    assert outcome.where == "worst at 8M; of the bare rate 92.7 %, of which headers leave 95.6 %"


def test_the_wire_bound_of_training():
    target = next(target for target in TRAINING if "bound of the wire" in target.against)
    bound = 4 * 64 / ring_seconds(4, target.step_bytes, "1gbit")
    assert target.step_bytes == 7_454_760
    sample = Sample("ours", dict(target.ours.row), "throughput", "samples/s", (bound * 0.92,), 0)
    assert evaluate(target, [sample]).ratio.median == pytest.approx(0.92)
    assert evaluate(target, [sample]).met is True


def test_what_lies_within_the_spread_is_no_overhead():
    target = next(target for target in TRAINING if target.within_spread)

    def rates(runner, *values):
        return [
            Sample(runner, dict(target.ours.row), "throughput", "samples/s", (value,), number)
            for number, value in enumerate(values)
        ]

    plain = rates("single", 100.0, 100.0, 100.0)
    assert evaluate(target, [*rates("ours", 98.0, 99.0, 102.0), *plain]).met is True
    assert evaluate(target, [*rates("ours", 96.0, 97.0, 98.0), *plain]).met is False


def test_rows_from_namespaces_are_kept_apart():
    samples = [*ours(4, 1.0, link="1gbit"), *latency("mpi", 4, 3.0)]
    assert evaluate(SMALL, samples).ratio is None


def test_what_a_call_costs_is_taken_off():
    target = next(target for target in ALLREDUCE if target.floor_us is not None)
    cells = {"ranks": 2, "cache": "hot", "transport": "auto"}
    samples = [
        *latency("op", 4, 60e-6, 70e-6, **cells),
        *latency("op", 4, 55e-6, 61e-6, metric="overhead", **cells),
        *latency("op", 64, 1e-3, **cells),
    ]
    outcome = evaluate(target, samples)
    assert outcome.ratio.median == pytest.approx(7.0)
    assert (outcome.met, outcome.aimed) == (None, True)


def test_every_row_of_the_plan_is_there():
    rows = {(target.work, target.against): (target.must, target.aim) for target in TARGETS}
    for hidden, musts, aims in ((1024, (2.5, 2, 3.5), (3.2, 2.6, 4.5)), (2048, (2, 2, 3.5), (2.5, 2.5, 4.3))):
        work = f"MLP 784-{hidden}-{hidden}-10, 2 workers on 2 cores"
        for against, must, aim in zip(("Horovod", "MultiWorkerMirroredStrategy", "parameter servers"), musts, aims):
            assert rows[work, against] == (must, aim)
        assert rows[work, "two unconnected processes"] == (0.8, 0.9)
    assert rows["convolutional network, 2 workers on 2 cores", "two unconnected processes"] == (0.97, 0.99)
    assert rows["MLP 784-1024-1024-10, size 1", "plain Keras, within the spread"] == (1, None)
    for ranks in (4, 8):
        assert rows[f"64 KiB - 4 MiB, {ranks} ranks, C API", "Open MPI"] == (1.2, 2)
        assert rows[f"64 MiB, {ranks} ranks, C API", "Open MPI"] == (2.5, 3.5)
        assert rows[f"every size, {ranks} ranks, op in tf.function", "Horovod-Gloo"] == (1, None)
    assert rows["TCP only, every size, 2 ranks, op in tf.function", "Horovod-Gloo"] == (1.3, 2)
    testbed = "MLP 784-1024-1024-10, 4 namespaces at 1 Gbit/s"
    assert rows[testbed, "MultiWorkerMirroredStrategy"] == (1.1, None)
    assert rows[testbed, "parameter servers"] == (3, None)
    assert rows[testbed, "the ring bound of the wire, less headers"] == (0.9, 0.95)
    assert rows[f"{testbed}, bf16 wire", "MultiWorkerMirroredStrategy"] == (None, 1.9)


def test_every_row_is_well_formed():
    assert len({(t.work, t.against) for t in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        assert (target.must, target.aim, target.floor_us) != (None, None, None)
        assert target.aim is None or target.must is None or target.aim >= target.must
        assert target.bytes_from <= target.bytes_to
    assert {target.metric for target in ALLREDUCE} == {"latency"}
    assert {target.metric for target in TRAINING} == {"throughput"}


def test_the_board_shows_verdicts():
    good, bad = replace(SMALL, must=1.0, aim=None), replace(SMALL, must=9.0, percent=True)
    samples = [*ours(4, 1.0), *latency("mpi", 4, 3.0)]
    table = targets_report(outcomes(samples, [good, SMALL, bad, replace(SMALL, ours=Side(("x",)))]))
    assert [row[5] for row in table.rows] == ["pass", "pass, aim reached", "MISS", "not measured"]
    assert table.rows[0][2:5] == ("1x", "-", "3.00x (3.00 to 3.00)")
    assert table.rows[2][2:5] == ("900 %", "300 %", "300.0 % (300.0 to 300.0)")
    assert table.note.startswith("2 pass, 1 miss, 1 not measured")
    assert missed([Outcome(bad, evaluate(bad, samples).ratio, "")]) == 1


def no_watch(turns):
    raise AssertionError("nothing here takes turns")


def part(name, action):
    return Part(name, "group", lambda how: action())


def circumstances(**changes):
    return Circumstances(True, "", ["x"], no_watch, **changes)


def test_impossible_parts_are_listed_and_others_run():
    def refuse():
        raise UnsupportedError("namespaces need root")

    said = []
    report = run_suite([part("testbed", refuse), part("loopback", make_report)], circumstances(), said.append)
    assert report.samples == make_report().samples
    assert report.notes == ("a note", "testbed: namespaces need root")
    assert said == [
        "== part 1 of 2: testbed",
        "skipped testbed: namespaces need root",
        "== part 2 of 2: loopback",
    ]
    with pytest.raises(ConfigError, match="nothing could be measured: testbed: namespaces need root"):
        run_suite([part("testbed", refuse)], circumstances(), said.append)


def test_a_failing_part_does_not_stop_others():
    def break_down():
        raise ZeroDivisionError("by zero")

    kept = []
    parts = [part("first", make_report), part("broken", break_down), part("last", make_report)]
    report = run_suite(parts, circumstances(), lambda text: None, kept.append)
    assert len(report.samples) == 2 * len(make_report().samples)
    assert report.notes == ("a note", "broken: ZeroDivisionError: by zero")
    assert [len(one.samples) for one in kept] == [4, 8]


def test_no_part_begins_when_the_time_is_up():
    said = []
    with pytest.raises(ConfigError, match="the time was up before it"):
        run_suite([part("late", make_report)], circumstances(until=Deadline.after(-1)), said.append)
    assert circumstances().budget_s == 0
    assert 5000 < circumstances(until=Deadline.after(10_000)).budget_s <= 10_000
    assert circumstances(until=Deadline.after(-1)).budget_s > 0


def test_an_unmeasured_row_quotes_its_runner():
    last = "mpi, 2 ranks: killed after 60 s in round 1: waiting for rank 1"
    statuses = [
        RunnerStatus("mpi", RunnerState.FAILED, last),
        RunnerStatus("other", RunnerState.FAILED, "something else"),
        RunnerStatus("c", RunnerState.MISSING, "build it"),
    ]
    (row,) = targets_report(outcomes(ours(4, 1.0), [SMALL], statuses)).rows
    assert row[-2:] == (
        "not measured",
        f"mpi has not run; mpi failed: {last}; c missing: build it",
    )


def test_merged_reports_keep_all_attachments():
    first = replace(make_report(), attachments={"timelines": [{"model": "a"}]})
    second = replace(make_report(), attachments={"timelines": [{"model": "b"}]})
    merged = merge([make_report(), first, second], [], ["tfcollective"])
    assert merged.attachments == {"timelines": [{"model": "a"}, {"model": "b"}]}


def test_merged_rounds_stay_apart_and_failures_stay_seen():
    one = make_report()
    two = replace(one, statuses=(RunnerStatus("c", RunnerState.FAILED, "x"), RunnerStatus("horovod", RunnerState.RAN)))
    merged = merge([one, two], ["new"], ["command"])
    assert sorted({sample.round for sample in merged.samples}) == [0, 1]
    assert {status.runner: status.state for status in merged.statuses} == {
        "c": RunnerState.FAILED,
        "horovod": RunnerState.RAN,
    }
    assert merged.notes == ("a note", "new")


def test_groups_of_parts():
    assert parts_named(()) == PARTS
    assert {part.group for part in parts_named(("allreduce",))} == {"allreduce"}
    with pytest.raises(ConfigError, match="unknown group 'x': expected one of allreduce"):
        parts_named(("x",))
