"""Weights that one rank has changed are found, and put right where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]


def test_changed_weights_are_found_and_resynced() -> None:
    run_job(Path(__file__).with_name("job_replica_check.py"), 2, TFCOLLECTIVE_REPLICA_CHECK_STEPS="1")
