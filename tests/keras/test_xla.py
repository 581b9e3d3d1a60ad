"""Training with jit_compile=True gives the weights that it gives without, on one rank and on several: see the job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from jobs import run_job

TENSORFLOW = tuple(map(int, tf.__version__.split(".")[:2]))
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(TENSORFLOW < (2, 21), reason="its XLA cannot communicate"),
]
JOB = Path(__file__).with_name("job_xla.py")


@pytest.mark.timeout(1200)
def test_one_and_two_compiled_ranks_train_alike(tmp_path: Path) -> None:
    results = {}
    for ranks in (1, 2):
        path = tmp_path / f"{ranks}.npz"
        done = run_job(JOB, ranks, str(path), timeout=500)
        assert done.stdout.count("ok ") == 10 * ranks
        results[ranks] = dict(np.load(path))
    assert results[2].keys() == results[1].keys()
    for name, expected in results[1].items():
        tolerance = 1e-2 if name.startswith("compressed") else 1e-5
        np.testing.assert_allclose(results[2][name], expected, tolerance, tolerance / 2, err_msg=name)


def test_replicas_of_compiled_steps_are_compared(tmp_path: Path) -> None:
    done = run_job(JOB, 2, str(tmp_path / "none"), "change", expect=None)
    assert "the replicas' weights differ" in done.stderr, done.stderr
