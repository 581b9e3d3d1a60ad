"""A check that data were divided, on real processes: see the job."""

from __future__ import annotations

from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
CASES = 24 if hasattr(tf.keras, "distribution") else 14


@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_that_several_ranks_train_on(ranks: int) -> None:
    done = run_job(Path(__file__).with_name("job_divided_rows.py"), ranks)
    assert done.stdout.count("ok ") == ranks * CASES
