"""The collectives on tensors, on real processes: see the job."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
JOB = Path(__file__).with_name("job_collectives.py")


@pytest.mark.parametrize(
    ("ranks", "transport"), [(1, "auto"), pytest.param(2, "auto", marks=pytest.mark.long), (3, "tcp")]
)
def test_collectives(ranks: int, transport: str) -> None:
    done = run_job(JOB, ranks, TFCOLLECTIVE_TRANSPORT=transport)
    assert done.stdout.count("ok ") == 12 * ranks


@pytest.mark.parametrize(
    ("ranks", "transport"), [pytest.param(1, "auto", marks=pytest.mark.long), (2, "tcp"), (3, "auto")]
)
def test_ranks_that_run_out_of_data_join(ranks: int, transport: str) -> None:
    done = run_job(JOB.with_name("job_join.py"), ranks, TFCOLLECTIVE_TRANSPORT=transport)
    assert done.stdout.count("ok ") == (5 if ranks > 1 else 4) * ranks


def test_a_second_world_in_the_same_processes() -> None:
    done = run_job(JOB.with_name("job_again.py"), 2)
    assert done.stdout.count("ok ") == 4


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_plans_of_vanished_functions_are_freed(transport: str) -> None:
    done = run_job(JOB.with_name("job_plans.py"), 2, TFCOLLECTIVE_TRANSPORT=transport)
    assert done.stdout.count("ok ") == 2


def test_process_sets() -> None:
    done = run_job(JOB.with_name("job_process_sets.py"), 3)
    assert done.stdout.count("ok ") == 6 * 3


def test_a_horovod_script_runs_unchanged() -> None:
    done = run_job(JOB.with_name("job_horovod.py"), 2, options=("--horovod-compat",))
    assert done.stdout.count("ok ") == 3 * 2
