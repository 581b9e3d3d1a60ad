"""The benchmark as a user runs it, with the runners that need nothing but tfcollective."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import gone, until, words_of
from time_limits import within

pytestmark = [pytest.mark.multiprocess]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "tfcollective", "bench", "allreduce", "-np", "2"]
QUICK = ["--quick", "--sizes", "4,4K", "--iterations", "20", "--rounds", "2"]


def test_ours_run_and_what_is_missing_is_named(tmp_path):
    (tmp_path / "none").mkdir()
    # A baseline that crashes: its row says so, the others go on.
    broken = tmp_path / "python"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *importlib*) exit 0;; esac\necho "no module named horovod" >&2\nexit 3\n'
    )
    broken.chmod(0o755)
    options = ["--baselines", str(tmp_path / "none"), "--horovod-python", str(broken), "--out", str(tmp_path / "out")]
    runners = ["--runners", "c,ctypes,numpy,openmpi-c,horovod"]
    done = subprocess.run(
        [*COMMAND, *QUICK, *runners, *options], capture_output=True, text=True, timeout=within(150), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "c: missing: run tools/baselines.sh programs" in done.stdout
    assert "ctypes: ran" in done.stdout
    assert "horovod: failed: horovod, 2 ranks: ended with code 3 in round 1: no module named horovod" in done.stdout
    report = json.loads((tmp_path / "out" / "allreduce.json").read_text())
    latencies = [sample for sample in report["samples"] if sample["metric"] == "latency"]
    assert {(s["runner"], s["row"]["bytes"], s["round"]) for s in latencies} == {
        (runner, size, number) for runner in ("ctypes", "numpy") for size in (4, 4096) for number in (0, 1)
    }
    assert all(len(sample["values"]) == 20 and min(sample["values"]) > 0 for sample in latencies)
    page = (tmp_path / "out" / "allreduce.html").read_text()
    assert "All-reduce benchmark" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_no_runner_could_be_measured(tmp_path):
    options = ["--baselines", str(tmp_path), "--runners", "c"]
    done = subprocess.run(
        [*COMMAND, *QUICK, *options], capture_output=True, text=True, timeout=within(150), check=False
    )
    assert done.returncode == 1
    assert "c: missing: run tools/baselines.sh programs" in done.stdout
    assert "nothing was measured" in done.stderr


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_program_in_c_is_built_and_runs(tmp_path):
    script = [str(ROOT / "tools" / "baselines.sh"), "--into", str(tmp_path), "programs"]
    built = subprocess.run(script, capture_output=True, text=True, timeout=within(150), check=False)
    assert built.returncode == 0, built.stderr
    options = ["--baselines", str(tmp_path), "--runners", "c", "--caches", "hot,cold", "--json"]
    done = subprocess.run(
        [*COMMAND, *QUICK, *options], capture_output=True, text=True, timeout=within(150), check=False
    )
    report = json.loads(done.stdout)
    assert report["statuses"][0]["state"] == "ran", report["statuses"]
    rows = {(s["row"]["cache"], s["row"]["bytes"]) for s in report["samples"] if s["metric"] == "latency"}
    assert rows == {("hot", 4), ("cold", 4), ("hot", 4096), ("cold", 4096)}
    again = subprocess.run(script, capture_output=True, text=True, timeout=within(150), check=False)
    assert "are there" in again.stdout


@pytest.mark.long
@pytest.mark.tensorflow
def test_the_op_runs_over_tcp_and_prints_json():
    command = [*COMMAND, *QUICK, "--rounds", "1", "--runners", "op", "--transport", "tcp", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within(150), check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["statuses"] == [
        {"runner": "op", "state": "ran", "detail": "tfcollective, op in tf.function"},
    ], done.stderr
    assert {sample["row"]["transport"] for sample in report["samples"]} == {"tcp"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_leaves_nothing(tmp_path, number):
    command = [*COMMAND, "--runners", "ctypes", "--sizes", "64M", "--iterations", "100000", "--rounds", "100"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path)
    ranks = wait_for_ranks(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=within(60))
    assert process.returncode == 130, errors
    until(lambda: all(map(gone, ranks)))
    assert os.listdir(tmp_path) == []


def wait_for_ranks(pid):
    benchmark = psutil.Process(pid)
    give_up = time.monotonic() + within(60)
    while time.monotonic() < give_up and benchmark.status() != psutil.STATUS_ZOMBIE:
        family = benchmark.children(recursive=True)
        ranks = [member for member in family if "workers.native" in " ".join(words_of(member)[-12:])]
        if len(ranks) >= 3:  # the launcher and both ranks
            return family
        time.sleep(0.1)  # processes of others give no notice
    benchmark.kill()
    raise AssertionError("the ranks did not start")


@pytest.mark.long
@pytest.mark.tensorflow
def test_scaling_measures_steps_and_a_coordinator(tmp_path):
    command = [sys.executable, "-m", "tfcollective", "bench", "scaling", "--quick", "-np", "2", "--tensors", "3,7"]
    options = ["--bytes", "64K", "--agents", "20", "--runners", "ours,coordinator", "--out", str(tmp_path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=within(150), check=False)
    assert done.returncode == 0, done.stderr
    assert "ours: ran" in done.stdout, done.stderr
    report = json.loads((tmp_path / "scaling.json").read_text())
    steps = {s["row"]["tensors"]: s["values"] for s in report["samples"] if s["metric"] == "step"}
    assert set(steps) == {3, 7}
    assert all(len(values) == 10 and min(values) > 0 for values in steps.values())
    (joined,) = [s["values"] for s in report["samples"] if s["metric"] == "join"]
    assert joined[0] > 0
    assert "agents that join one coordinator at once" in (tmp_path / "scaling.html").read_text()
