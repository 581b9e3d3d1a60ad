"""The benchmarks of elastic jobs as a user runs them, for a short time."""

import json
import re
import subprocess
import sys

import pytest
from time_limits import within

pytestmark = [pytest.mark.multiprocess, pytest.mark.elastic, pytest.mark.timeout(3600)]
COMMAND = [sys.executable, "-m", "tfcollective", "bench"]
HOLDS = {"the jobs", "left behind", "weights"}  # whatever the load: speed and the spread of losses are no test's


@pytest.mark.parametrize("framework", ["numpy", pytest.param("tensorflow", marks=pytest.mark.tensorflow)])
def test_a_job_outlasts_faults_without_repeating_steps(tmp_path, framework):
    options = ["--minutes", "0.5", "--every", "4", "--calm", "2", "-np", "3", "--hang", f"{within(60):g}"]
    options += ["--references", "2", "--framework", framework, "--seed", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [*COMMAND, "chaos", *options], capture_output=True, text=True, timeout=within(400), check=False
    )
    report = json.loads((tmp_path / "chaos.json").read_text())
    found = report["attachments"]
    checks = {check["what"]: check for check in found["checks"]}
    said = "\n".join([done.stderr, *found["changes"], found["stacks"]])
    assert checks.keys() > HOLDS, said
    assert all(checks[what]["passed"] for what in HOLDS), said
    assert found["faults"]
    assert (tmp_path / "chaos-faults.png").exists()
    assert done.returncode == (0 if all(check["passed"] for check in checks.values()) else 1)


@pytest.mark.tensorflow
def test_times_after_growth_and_kill_are_measured(tmp_path):
    options = [
        "--runners",
        "ours,restart,horovod",
        "-np",
        "2",
        "--rounds",
        "2",
        "--megabytes",
        "5",
        "--calm",
        "1",
        "--baselines",
        str(tmp_path / "none"),
    ]
    done = subprocess.run(
        [*COMMAND, "elastic", *options, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=within(500),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "horovod: missing: run tools/baselines.sh horovod" in done.stdout
    samples = json.loads((tmp_path / "elastic.json").read_text())["samples"]
    found = {(one["runner"], one["metric"], one["row"]["victim"]) for one in samples}
    assert found == {
        (runner, metric, victim)
        for runner, metrics in (
            ("ours", ("survivors", "replacement", "join", "grow", "pause")),
            ("restart", ("survivors", "replacement")),
        )
        for metric in metrics
        for victim in (0, 1)
    }
    assert all(value > 0 for one in samples for value in one["values"])


@pytest.mark.tensorflow
def test_the_cost_of_a_commit_is_measured(tmp_path):
    module = [sys.executable, "-m", "tfcollective_bench.elastic.commit"]
    options = ["--weights", "2", "--megabytes", "0.1", "--blocks", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tfcollective", "run", "-np", "1", "--min-np", "1", *module, *options],
        capture_output=True,
        text=True,
        timeout=within(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"adam, \d+ variables, 16 steps each:", done.stdout), done.stdout
    line = r"without \d+\.\d \(.+?\), with a commit \d+\.\d \(.+?\) ms"
    assert re.search(f"by the clock: {line}", done.stdout), done.stdout
    assert re.search(f"processor time: {line}", done.stdout), done.stdout
