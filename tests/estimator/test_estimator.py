"""Estimators on two ranks: see the job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

pytest.importorskip("fsspec")

from jobs import run_job
from time_limits import within

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators"),
]
JOB = Path(__file__).with_name("job_estimator.py")


def test_two_ranks_train_like_one_process(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run_job(JOB, 2, str(tmp_path / "model"), expect=1)
    assert done.stdout.count("ok ") == 2 * 6, done.stderr
    assert "rank 1 (worker:1" in done.stderr
    assert "ArithmeticError: on purpose" in done.stderr
    assert "CollectiveAbortedError: rank 1 stopped" in done.stderr
    assert time.monotonic() - began < within(100)
