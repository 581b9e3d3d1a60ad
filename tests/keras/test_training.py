"""Training on several processes with the same global batches gives the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.timeout(1200)]
# The longest test of all: once in `make test`, with Keras 2 in `make test-long`.
if keras.__version__.startswith("2."):
    pytestmark.append(pytest.mark.long)
JOB = Path(__file__).with_name("job_training.py")

# Sums of the same float32 numbers in another order differ by round-off; 12 steps let that grow to about 5e-7 here.
RELATIVE, ABSOLUTE = 1e-5, 5e-6


@pytest.mark.parametrize("several", [[3], pytest.param([2, 4], marks=pytest.mark.long)])
def test_one_and_several_ranks_train_alike(tmp_path: Path, several: list[int]) -> None:
    results = {}
    for ranks in (1, *several):
        path = tmp_path / f"{ranks}.npz"
        run_job(JOB, ranks, str(path))
        results[ranks] = dict(np.load(path))
    for ranks in several:
        assert results[ranks].keys() == results[1].keys()
        for name, expected in results[1].items():
            np.testing.assert_allclose(results[ranks][name], expected, RELATIVE, ABSOLUTE, err_msg=f"{name} on {ranks}")
