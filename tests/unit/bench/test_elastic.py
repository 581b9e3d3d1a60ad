"""The elastic benchmark: options, commands, what a turn measures, tables."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_reports import make_report

from tfcollective._base.errors import ConfigError
from tfcollective._cli import main
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.elastic.options import ElasticOptions
from tfcollective_bench.elastic.pages import overview, sections, summary_of
from tfcollective_bench.elastic.run import host_names, samples_of
from tfcollective_bench.elastic.runners import RUNNERS, chosen, hint_for, variant_of
from tfcollective_bench.elastic.trial import TURN, times_after, times_of_growing
from tfcollective_bench.journal import READY, STEP, Line
from tfcollective_bench.model import RunnerState, RunnerStatus

FOUND = Baselines(Path("/l.so"), None, None, None, None, "/h/python", True)
NOTHING = Baselines(Path("/l.so"), None, None, None, None, None, False)
OPTIONS = ElasticOptions()
NAMES = ("localhost", "127.0.0.1", "10.0.0.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runners", "mpi"], "unknown runner 'mpi': expected one of ours, ours-traced, restart, horovod"),
        (["-np", "1"], "-np: one rank is lost and one has to stay: 2 or more"),
        (["--megabytes", "0"], "--megabytes: expected a number above 0, got 0"),
        (["--calm", "0"], "--calm: expected a number above 0, got 0"),
        (["--rounds", "0"], "--rounds: expected a number above 0, got 0"),
        (["--horovod-python", "/no/python"], "/no/python does not exist"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(["bench", "elastic", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_what_is_missing_says_how_to_get_it():
    assert "tools/baselines.sh horovod" in hint_for("horovod", NOTHING, 3, NAMES)
    assert "pip install" in hint_for("ours", NOTHING, 3, NAMES)
    assert "4 are needed, there are localhost, 127.0.0.1, 10.0.0.5" in hint_for("horovod", FOUND, 4, NAMES)
    assert all(hint_for(runner, FOUND, 3, NAMES) == "" for runner in RUNNERS)
    with pytest.raises(ConfigError):
        chosen(("ours", "gloo"))


def test_every_runner_has_its_command():
    directory = Path("/turns")
    ours, traced, restart, horovod = (variant_of(runner, FOUND, OPTIONS, NAMES, directory).argv for runner in RUNNERS)
    for argv, runner in ((ours, "ours"), (traced, "ours-traced"), (restart, "restart"), (horovod, "horovod")):
        assert argv[argv.index("tfcollective_bench.elastic.trial") + 1] == f"/turns/{runner}"
        assert argv[-3:] == (runner, TURN, "25")
    for argv in (ours, traced, horovod):
        assert [argv[argv.index(option) + 1] for option in ("-np", "--min-np", "--max-np")] == ["2", "1", "3"]
        assert argv[argv.index("--host-discovery-script") + 1] == f"cat {TURN}/hosts"
    assert restart[restart.index("--max-restarts") + 1] == "1"
    assert restart[restart.index("-np") + 1] == "3"
    assert "--min-np" not in restart
    assert "/h/python" in horovod


def test_jobs_begin_with_one_slot_less():
    assert host_names({"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.5", "fd00::5")}) == NAMES
    hosts = {runner: variant_of(runner, FOUND, OPTIONS, NAMES, Path("/turns")).argv[7:9] for runner in RUNNERS}
    assert hosts == {
        "ours": ("localhost:2", "localhost:3"),
        "ours-traced": ("localhost:2", "localhost:3"),
        "restart": ("", ""),
        "horovod": ("localhost:1,127.0.0.1:1", "localhost:1,127.0.0.1:1,10.0.0.5:1"),
    }


def line(pid, event, at, size=3):
    return Line(f"process:{pid}", pid, event, at, 1, 0, size, 1)


BEFORE = [line(pid, event, at) for pid in (1, 2, 3) for event, at in ((READY, 1.0), (STEP, 2.0))]


def test_survivors_and_their_replacement():
    lines = [
        *BEFORE,
        line(1, STEP, 10.01),  # it was in the old world
        *(line(1, READY, 10.1, 2), line(1, STEP, 10.2, 2), line(1, READY, 13.0), line(1, STEP, 13.5)),
        *(line(2, READY, 10.1, 2), line(2, STEP, 10.3, 2), line(2, READY, 13.0), line(2, STEP, 13.5)),
        *(line(4, READY, 13.0), line(4, STEP, 13.6)),
    ]
    found = times_after(lines, 10.0, 3, 3)
    assert found == {"survivors": pytest.approx(0.3), "replacement": pytest.approx(3.6), "join": pytest.approx(3.3)}
    assert times_after([one for one in lines if one.pid != 4], 10.0, 3, 3) is None
    assert times_after([one for one in lines if one.pid != 2], 10.0, 3, 3) is None


def test_a_full_restart_lasts_until_the_last():
    lines = [*BEFORE]
    for pid, at in ((4, 15.0), (5, 15.2), (6, 15.1)):
        assert times_after(lines, 10.0, 3, 3) is None
        lines += [line(pid, READY, 14.0), line(pid, STEP, at)]
    assert times_after(lines, 10.0, 3, 3) == {"survivors": pytest.approx(5.2), "replacement": pytest.approx(5.2)}


def test_the_times_of_a_world_that_grows():
    lines = [
        *(line(1, STEP, at, 2) for at in (9.0, 11.0, 11.4)),
        *(line(2, STEP, at, 2) for at in (9.1, 11.1, 11.5)),
        *(line(1, STEP, at) for at in (11.9, 12.0)),
        *(line(2, STEP, at) for at in (11.8, 12.0)),
    ]
    assert times_of_growing(lines, 10.0, 3) is None
    lines += [line(3, STEP, at) for at in (11.7, 12.0)]
    assert times_of_growing(lines, 10.0, 3) == {"grow": pytest.approx(1.9), "pause": pytest.approx(0.2)}


def report():
    samples = [
        sample
        for number, (survivors, replacement) in enumerate(((0.1, 3.0), (0.2, 4.0), (0.3, 5.0)))
        for sample in samples_of(
            "ours",
            OPTIONS,
            number,
            {"survivors": survivors, "replacement": replacement, "join": 0.1, "victim": number},
        )
    ]
    states = (RunnerStatus("ours", RunnerState.RAN), RunnerStatus("horovod", RunnerState.MISSING, "build it"))
    return replace(make_report(), samples=tuple(samples), statuses=states)


def test_the_table_shows_measured_and_missing_times():
    (table,) = overview(report())
    assert [row[:3] for row in table.rows] == [
        ("SIGKILL to the survivors' next step", "ours", "3"),
        ("SIGKILL to the survivors' next step", "horovod", "0"),
        ("SIGKILL to the replacement's first step", "ours", "3"),
        ("SIGKILL to the replacement's first step", "horovod", "0"),
        ("no step while it joined", "ours", "3"),
        ("no step while it joined", "horovod", "0"),
        ("a new slot to the larger world's first step", "ours", "0"),
        ("a new slot to the larger world's first step", "horovod", "0"),
        ("no step while it grew", "ours", "0"),
        ("no step while it grew", "horovod", "0"),
    ]
    assert table.rows[0][3:] == ("200 ms", "280 ms", "100 ms", "300 ms")
    assert table.rows[1][3] == "not measured"
    assert summary_of(report(), "ours", "replacement").median == 4.0


def test_the_page_has_a_plot():
    assert [plot.name for section in sections(report()) for plot in section.plots] == ["changes"]
