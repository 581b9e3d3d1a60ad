"""A compute job and a training job, both with Horovod's names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import Run

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.long]
SCRIPT = Path(__file__).with_name("job_data_service.py")
SERVICE = "horovod.tensorflow.data.compute_worker"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.mark.parametrize(("side", "dispatchers"), [("compute", "1"), ("training", "2")])
def test_two_jobs_share_a_data_service(side: str, dispatchers: str, tmp_path: Path) -> None:
    file = str(tmp_path / "service.json")
    common = ("--horovod-compat", "-np", "2", sys.executable)
    service = ("-m", SERVICE, file, "--dispatchers", dispatchers, "--dispatcher-side", side)
    with Run((*common, *service), env=QUIET) as computing, Run((*common, str(SCRIPT), file), env=QUIET) as training:
        code, out, err = training.finish(200)
        assert code == 0, err
        assert out.count("ok") == 2
        code, _, err = computing.finish(60)
        assert code == 0, err
