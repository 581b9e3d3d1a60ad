"""Estimators on two ranks: see the job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators"),
]
JOB = Path(__file__).with_name("job_estimator.py")


def test_two_ranks_train_as_one_process_would(tmp_path: Path) -> None:
    done = run_job(JOB, 2, str(tmp_path / "model"))
    assert done.stdout.count("ok ") == 2 * 5


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    """A monitored session would take the others' error for a preemption and make a new session, again and again."""
    began = time.monotonic()
    done = run_job(JOB, 2, str(tmp_path / "model"), "fail", expect=1)
    assert "rank 1 (worker:1" in done.stderr
    assert "ArithmeticError: on purpose" in done.stderr
    assert "CollectiveAbortedError: rank 1 stopped" in done.stderr
    assert time.monotonic() - began < 100
