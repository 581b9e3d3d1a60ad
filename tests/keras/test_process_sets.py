"""Process sets that train side by side get the numbers of jobs of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.timeout(900)]


def test_sets_train_as_jobs_of_their_own(tmp_path: Path) -> None:
    for which, ranks in (("both", 3), ("pair", 2), ("single", 1)):
        run_job(Path(__file__).with_name("job_process_sets.py"), ranks, str(tmp_path / which), which)
    for name in ("pair", "single"):
        beside, alone = (dict(np.load(tmp_path / which / f"{which}.{name}.npz")) for which in ("both", name))
        assert beside.keys() == alone.keys()
        assert {"fit lr", "fit val_auc", "experiment auc"} <= alone.keys()
        for key, expected in alone.items():
            np.testing.assert_allclose(beside[key], expected, 1e-6, 1e-7, err_msg=f"{key} of {name}")
