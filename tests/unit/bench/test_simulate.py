"""The simulator: steps of the native algorithms over a model whose results are known in advance."""

import math
from dataclasses import replace

import pytest
from bench_reports import make_report

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import InternalError, InvalidArgumentError
from tfcollective._cli import main
from tfcollective_bench.model import Report, Sample
from tfcollective_bench.report import write_json
from tfcollective_bench.simulate import steps
from tfcollective_bench.simulate.calibrate import calibrate, fitted, measure_gamma, measured_worlds, predict
from tfcollective_bench.simulate.engine import duration, looks_the_same
from tfcollective_bench.simulate.network import Network, network_of, ring_bound
from tfcollective_bench.simulate.options import SimulateOptions
from tfcollective_bench.simulate.pages import overview, sections
from tfcollective_bench.simulate.run import run_simulation
from tfcollective_bench.simulate.steps import LIBRARY, Step, StepKind, allreduce_steps, load_simulator
from tfcollective_bench.wire import PAYLOAD

ALPHA = 1e-4
ONLY_LATENCY = Network(ALPHA, 0.0, 0.0)
ONLY_LINK = Network(0.0, 1e-8, 0.0)
M = 1 << 20

needs_simulator = pytest.mark.skipif(
    not LIBRARY.exists(), reason="the simulator's library is not built: make simulator"
)


@needs_simulator
def test_steps_come_from_the_native_algorithms():
    taken = allreduce_steps(2, 0, 4)
    assert [step.kind for step in taken].count(StepKind.SEND) == 1
    assert {step.peer for step in taken} == {1, -1}
    assert sum(step.bytes for step in taken if step.kind == StepKind.SEND) == 4
    with pytest.raises(InvalidArgumentError, match="rank 2 of 2"):
        allreduce_steps(2, 2, 4)


@needs_simulator
@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_small_buffers_cost_a_latency_per_doubling(ranks):
    assert predict(ranks, 4, ONLY_LATENCY) == pytest.approx(math.log2(ranks) * ALPHA)


@needs_simulator
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_large_buffers_take_what_a_ring_moves(ranks):
    assert predict(ranks, 64 * M, ONLY_LINK) == pytest.approx(ring_bound(ONLY_LINK, ranks, 64 * M), rel=0.02)


@needs_simulator
def test_gamma_counts_reduced_bytes_copy_counts_moved():
    gamma = Network(0.0, 0.0, 1e-9)
    assert predict(2, 4096, gamma) == pytest.approx(4096e-9)
    assert predict(2, 4096, Network(0.0, 0.0, 0.0, copy=1e-9)) == pytest.approx(4096e-9)
    slower = replace(ONLY_LINK, copy=2e-8)
    assert predict(4, 16 * M, slower) == pytest.approx(2 * predict(4, 16 * M, ONLY_LINK), rel=0.02)
    shared = slower.on_shared_cores(4, 2)
    assert (shared.copy, shared.beta) == (4e-8, 1e-8)
    assert slower.on_shared_cores(2, 4) == slower


@needs_simulator
def test_a_burst_passes_an_idle_link_at_once():
    burst = replace(ONLY_LINK, burst=1000.0)
    assert predict(2, 400, burst) == 0.0
    assert predict(2, 1400, burst) == pytest.approx(400e-8)
    # In a long transfer it is spent once.
    assert predict(2, 8 * M, burst) == pytest.approx(predict(2, 8 * M, ONLY_LINK) - 1000e-8, rel=1e-3)


@needs_simulator
@pytest.mark.parametrize("ranks", [3, 6, 8])
def test_one_rank_of_a_ring_stands_for_all(ranks):
    network = Network(ALPHA, 1e-8, 1e-10)
    taken = {rank: allreduce_steps(ranks, rank, 3 * M) for rank in range(ranks)}
    assert looks_the_same(taken, ranks)
    # Without the short cut: ranks that differ in a message for which no rank waits.
    extra = Step(StepKind.RECEIVE, (0 + 1) % ranks, 1 << 30, 0, 1 << 30)
    odd = {**taken, 0: [*taken[0], extra]}
    assert not looks_the_same(odd, ranks)
    assert duration(ranks, taken.__getitem__, network) == pytest.approx(
        duration(ranks, odd.__getitem__, network), rel=1e-4
    )


def test_an_unsent_message_is_an_internal_error():
    receive = Step(StepKind.RECEIVE, 1, 7, 8, 1)
    programs = {0: [receive, Step(StepKind.WAIT, -1, 0, 0, 1)], 1: []}
    with pytest.raises(InternalError, match="no rank sends"):
        duration(2, programs.__getitem__, ONLY_LATENCY)


def test_the_network_of_a_rate():
    apart = network_of("1gbit", ALPHA, 0.0, 0.0, shaped=False)
    assert (1 / apart.beta, apart.burst) == (pytest.approx(1e9 / 8 * PAYLOAD), 0)
    shaped = network_of("1gbit", ALPHA, 0.0, 0.0, shaped=True)
    assert shaped.burst == pytest.approx((128 << 10) * PAYLOAD)


def lab_samples(network, worlds=(2, 4), sizes=(4, 65536, 8 * M), link="1gbit"):
    """What the model would measure."""
    for ranks in worlds:
        for size in sizes:
            row = {"bytes": size, "ranks": ranks, "link": link, "cache": "hot", "dtype": "float32"}
            yield Sample("ctypes", row, "latency", "s", (predict(ranks, size, network),) * 3, 0)


@needs_simulator
def test_the_model_finds_its_own_numbers_again():
    true = Network(3e-4, 1e-9, 0.0, copy=4e-9)
    measured = measured_worlds(list(lab_samples(true)))
    assert [one.bytes for one in fitted(measured)] == [4, 8 * M]
    assert {one.hosts for one in fitted(measured)} == {2}
    found = calibrate(replace(true, alpha=0.0, copy=0.0), measured)
    assert found.alpha == pytest.approx(true.alpha, rel=1e-3)
    assert found.copy == pytest.approx(true.copy, rel=1e-3)
    # A link that explains the time says nothing of processors.
    slow = replace(true, beta=1e-8)
    assert calibrate(slow, measured_worlds(list(lab_samples(slow)))).copy == 0


def test_gamma_is_measured():
    assert 0 < measure_gamma() < 1e-7


def measured_report():
    return replace(make_report(), samples=tuple(lab_samples(Network(3e-4, 1e-8, 0.0))))


def simulated(**options):
    asked = SimulateOptions(ranks=(8, 64), sizes=(4, M), links=("1gbit",), **options)
    return run_simulation(asked, [measured_report()], ["tfcollective"], None, lambda text: None)


@needs_simulator
def test_predictions_stand_next_to_what_was_measured():
    report = decode(encode(simulated()), Report, "the report")
    model, check, predictions = overview(report)
    assert model.rows[0][:2] == ("1gbit", "300 us")
    assert model.rows[0][-1] == "2, 4"
    assert [row[1:3] for row in check.rows] == [(hosts, size) for hosts in ("2", "4") for size in ("4", "64K", "8M")]
    place = check.columns.index("simulated / measured")
    assert check.rows[0][place] == "1.00 (fitted)"
    assert "fitted" not in check.rows[3][place]
    assert [row[0] for row in predictions.rows] == ["8", "64"]
    assert predictions.rows[0][1].startswith("900 us")
    assert [section.title for section in sections(report)][:3] == [
        "How to read this",
        "The model",
        "Predicted and measured",
    ]
    assert simulated(alpha=1e-3).settings["networks"]["1gbit"]["alpha"] == 1e-3


@needs_simulator
def test_nothing_measured_is_said(tmp_path, capsys):
    command = ["bench", "simulate", "-np", "4096", "--sizes", "4", "--link", "10gbit", "--alpha", "10"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "hosts at 10gbit: missing: not measured: --hosts" in said
    assert "120 us" in said  # 12 rounds of 10 us
    assert "How to read this" in (tmp_path / "simulate.html").read_text()


@needs_simulator
def test_without_a_lab_predictions_go_on(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["bench", "simulate", "-np", "8", "--sizes", "4K", "--link", "1gbit", "--hosts", "2"]) == 0
    said = capsys.readouterr()
    assert "hosts at 1gbit: failed: network namespaces need Linux and root" in said.out
    assert "not measured: network namespaces need Linux and root" in said.err


def test_a_missing_library_says_how_to_build(monkeypatch, tmp_path, capsys):
    load_simulator.cache_clear()
    monkeypatch.setattr(steps, "LIBRARY", tmp_path / "tfcollective_bench" / "simulate" / "libtfc_simulator.so")
    assert main(["bench", "simulate", "-np", "8"]) == 64
    assert f"make simulator SIMULATOR_INTO={tmp_path}" in capsys.readouterr().err


@needs_simulator
def test_reports_are_read(tmp_path, capsys):
    write_json(measured_report(), tmp_path / "testbed.json")
    command = ["bench", "simulate", "-np", "8", "--sizes", "4", "--link", "1gbit", str(tmp_path / "testbed.json")]
    assert main(command) == 0
    assert "measured in network namespaces" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "8192"], "-np: numbers of ranks from 2 to 4096"),
        (["-np", "x"], "-np: expected numbers"),
        (["--sizes", "8G"], "--sizes: sizes up to 1G"),
        (["--link", "wifi"], "--link: 'wifi' is no rate; write for example 1gbit"),
        (["--link", "none"], "--link: 'none' is no rate"),
        (["--hosts", "1"], "--hosts: numbers of namespaces from 2 to 64"),
        (["--alpha", "-1"], "above 0"),
        (["/no/report.json"], "/no/report.json"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(["bench", "simulate", *arguments]) == 64
    assert message in capsys.readouterr().err
