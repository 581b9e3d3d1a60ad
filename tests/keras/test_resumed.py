"""An unmodified script whose job is killed in the middle of an epoch, and started again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
JOB = Path(__file__).with_name("job_resumed.py")


@pytest.mark.long
@pytest.mark.kill
def test_a_killed_job_ends_like_one_process(tmp_path: Path) -> None:
    run_job(JOB, 1, str(tmp_path), "expected")
    run_job(JOB, 2, str(tmp_path), "resumed", "1", options=("--data-parallel",), expect=137)
    done = run_job(JOB, 2, str(tmp_path), "resumed", "none", options=("--data-parallel",))
    seen = [line for line in done.stdout.splitlines() if "epoch" in line]
    assert sum("epoch 0" in line for line in seen) == 0
    assert sum("epoch 1" in line for line in seen) == 2 * 7  # of the first four the numbers alone
    expected, resumed = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("expected", "resumed"))
    assert expected.keys() == resumed.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(resumed[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
