"""The training benchmark as a user runs it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from launching import gone, until, words_of
from one_testbed import needs_root, the_testbed
from time_limits import within

from tfcollective._base.errors import LaunchError
from tfcollective_bench import testbed

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.timeout(900)]

KERAS = "-keras2" if __import__("tensorflow").__version__.startswith("2.15") else ""
COMMAND = [sys.executable, "-m", "tfcollective", "bench", "training", "-np", "2", "--models", "mlp1024", "--quick"]


def run_bench(*options, timeout=300):
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=within(timeout), check=False)


@pytest.mark.long
def test_ours_trains_and_what_is_missing_is_named(tmp_path):
    (tmp_path / "none").mkdir()
    others = ["--baselines", str(tmp_path / "none")]
    runners = ["--runners", f"ours{KERAS},unconnected{KERAS},horovod", "--steps", "8"]
    done = run_bench(*runners, *others, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert f"ours{KERAS}: ran" in done.stdout, done.stderr
    assert "horovod: missing: run tools/baselines.sh horovod" in done.stdout
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    ours = {s["metric"]: s for s in report["samples"] if s["runner"] == f"ours{KERAS}"}
    assert len(ours["throughput"]["values"]) == 2
    assert min(ours["throughput"]["values"]) > 0
    first, *_, last = ours["loss"]["values"]
    assert last < first
    assert ours["trained"]["values"] == [0, 1024, 1536]
    (recorded,) = report["attachments"]["timelines"]
    assert [one["rank"] for one in recorded["timeline"]["ranks"]] == [0, 1]
    assert all(one["buckets"] for one in recorded["timeline"]["ranks"])
    page = (tmp_path / "out" / "training.html").read_text()
    assert "Where parameter servers win" in page
    assert "TensorFlow computed" in page


@pytest.mark.parametrize("options", [["--runners", "gloo"], ["--link", "wifi"], ["--models", "x"], ["-np", "0"]])
def test_wrong_usage(options):
    done = run_bench(*options, timeout=60)
    assert done.returncode == 64
    assert done.stderr.startswith("tfcollective: ")


@needs_root
@pytest.mark.long
def test_hosts_send_over_links_and_leave_nothing(tmp_path):
    with the_testbed():
        done = run_bench("--runners", f"ours{KERAS}", "--steps", "4", "--link", "1gbit", "--json")
        assert testbed.current_state().empty
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [status["state"] for status in report["statuses"]] == ["ran"], report["statuses"]
    (wire,) = [s["values"][0] for s in report["samples"] if s["metric"] == "wire"]
    # Two ranks send each other half of 7.45 MB twice for 2 x 64 samples: all of it over the links.
    assert wire == pytest.approx(2 * 7.455e6 / 128, rel=0.1)


@needs_root
def test_being_stopped_leaves_no_host(tmp_path):
    command = [sys.executable, "-m", "tfcollective", "bench", "allreduce", "-np", "2", "--link", "1gbit"]
    options = ["--runners", "ctypes", "--sizes", "64M", "--iterations", "100000"]
    with the_testbed():
        process = subprocess.Popen(
            [*command, *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        wait_for_ranks(process)
        processes = on_hosts()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=within(60))
        state = testbed.current_state()
    assert process.returncode == 130, errors
    assert state.empty, state
    until(lambda: all(map(gone, processes)))
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def on_hosts():
    """The processes on the test bed's hosts; none while the test bed is being built."""
    found, pids = [], ()
    with contextlib.suppress(LaunchError):  # `ip` does not understand half a host
        pids = testbed.current_state().processes
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found.append(psutil.Process(pid))
    return found


def wait_for_ranks(process):
    """Until both ranks run on their hosts."""
    give_up = time.monotonic() + within(60)
    while time.monotonic() < give_up and process.poll() is None:
        found = [words_of(one) for one in on_hosts()]
        if len([words for words in found if "tfcollective_bench.allreduce.workers.native" in words]) >= 2:
            return
        time.sleep(0.1)  # processes of others give no notice
    process.kill()
    raise AssertionError(f"the ranks did not start: {process.communicate()[1]!r}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_leaves_nothing(tmp_path, number):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [*COMMAND, "--runners", f"ours{KERAS}", "--steps", "100000"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(scratch)}
    )
    family = wait_for_workers(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=within(60))
    assert process.returncode == 130, errors
    until(lambda: all(map(gone, family)))
    assert [name for name in os.listdir(scratch) if name.startswith("tfcollective-bench")] == []


def wait_for_workers(pid):
    benchmark = psutil.Process(pid)
    give_up = time.monotonic() + within(90)
    while time.monotonic() < give_up and benchmark.status() != psutil.STATUS_ZOMBIE:
        family = benchmark.children(recursive=True)
        workers = [one for one in family if "tfcollective_bench.training.worker" in words_of(one)[:3]]
        if len(workers) == 2:
            return family
        time.sleep(0.1)  # processes of others give no notice
    benchmark.kill()
    raise AssertionError("the workers did not start")
