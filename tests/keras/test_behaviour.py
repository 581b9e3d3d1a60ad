"""What ranks must do together, on real processes: see the job."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]


def test_behaviour_on_two_ranks() -> None:
    """`make test-second-device` repeats it with variables on a second device, which stands for a GPU."""
    done = run_job(Path(__file__).with_name("job_behaviour.py"), 2)
    assert done.stdout.count("ok ") == 28


def test_embeddings_do_not_drift_apart() -> None:
    done = run_job(Path(__file__).with_name("job_embeddings.py"), 2, TFC_TESTS_SECOND_DEVICE="0")
    assert done.stdout.count("ok ") == 8
