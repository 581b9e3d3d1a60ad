"""When one rank fails in training, the others end at once, and the report names the first cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job
from time_limits import within

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill]
JOB = Path(__file__).with_name("job_failures.py")


@pytest.mark.parametrize(
    ("kind", "code", "message", "reported"),
    [
        ("exception", 1, "rank 1 stopped: ValueError: the data is rotten", "rank 1 .* exited with code 1"),
        pytest.param("exit", 3, "Unless rank 1 has failed", "rank 1 .* exited with code 3", marks=pytest.mark.long),
        ("kill", 137, "rank 1 .* is gone", "rank 1 .* was killed by SIGKILL"),
        ("uneven", 1, "rank 1 left after .*shard", "rank 1 .* exited with code 0 while"),
    ],
)
def test_the_failure_reaches_the_others(kind: str, code: int, message: str, reported: str, tmp_path: Path) -> None:
    done = run_job(JOB, 2, kind, expect=code, FAILED_AT=str(tmp_path / "failed_at"))
    waited = re.search(r"reported after ([0-9.]+) s", done.stdout)
    assert waited is not None, done.stdout
    assert float(waited[1]) < within(5.0)
    assert re.search(message, done.stdout), done.stdout
    assert " s: AbortedError: " in done.stdout  # of TensorFlow, also in a graph
    report = done.stderr[done.stderr.index("the job failed:") :]
    assert re.match(f"the job failed: {reported}", report), report


def test_a_deadlock_ends_long_before_the_operation_timeout() -> None:
    done = run_job(
        JOB.with_name("job_deadlock.py"), 2, expect=1, options=("--stall-warning", "1", "--op-timeout", "900")
    )
    assert done.stdout.count("went on") == 2, done.stdout
    assert "the ranks wait for each other, and none can go on" in done.stderr
    assert re.search(r"rank 0: allreduce 'metrics'; rank 1: allreduce 'gradients'", done.stderr), done.stderr


def test_slow_inputs_of_a_graph_are_no_deadlock() -> None:
    options = ("--stall-warning", "1", "--op-timeout", "900")
    done = run_job(JOB.with_name("job_slow_graph.py"), 2, expect=0, options=options)
    assert done.stdout.count("sums [2.0, 2.0]") == 2, done.stdout


@pytest.mark.parametrize(
    "kind", [pytest.param("numpy", marks=pytest.mark.long), "eager", pytest.param("graph", marks=pytest.mark.long)]
)
def test_ctrl_c_while_an_operation_waits(kind: str) -> None:
    # In TensorFlow the interrupt meets the making of a CancelledError: pybind11 shows both in a RuntimeError.
    done = run_job(JOB.with_name("job_interrupt.py"), 2, kind, expect=130 if kind == "numpy" else 1)
    back = re.search(r"back after ([0-9.]+) s", done.stdout)
    assert back is not None, done.stdout
    assert float(back[1]) < within(15.0)
    assert "KeyboardInterrupt" in done.stderr
