"""What ranks must do together, on real processes: see the job."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]


def test_behaviour_on_two_ranks() -> None:
    done = run_job(Path(__file__).with_name("job_behaviour.py"), 2)
    assert done.stdout.count("ok ") == 14
