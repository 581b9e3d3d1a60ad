"""A job that is killed in the middle of an epoch, and started again, ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
JOB = Path(__file__).with_name("job_backup.py")


@pytest.mark.long
@pytest.mark.kill
@pytest.mark.parametrize("passes", [1, 5])  # with 5, backups fall between updates
def test_a_killed_job_resumes_to_equal_results(tmp_path: Path, passes: int) -> None:
    run_job(JOB, 2, str(tmp_path), str(passes), "1", expect=137)
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == ["backup.npz", "begin.npz"]
    done = run_job(JOB, 2, str(tmp_path), str(passes))
    assert done.stdout.count("ok") == 2
    expected, resumed = (dict(np.load(tmp_path / name)) for name in ("expected.npz", "resumed.npz"))
    assert expected.keys() == resumed.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(resumed[name], values, err_msg=name)
