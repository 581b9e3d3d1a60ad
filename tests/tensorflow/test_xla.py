"""Functions that XLA compiles communicate, and fail, as others do: see the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from jobs import run_job

TENSORFLOW = tuple(map(int, tf.__version__.split(".")[:2]))
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(TENSORFLOW < (2, 21), reason="its XLA cannot communicate"),
]
JOB = Path(__file__).with_name("job_xla.py")


@pytest.mark.parametrize(
    ("ranks", "transport"), [pytest.param(1, "auto", marks=pytest.mark.long), (2, "auto"), (3, "tcp")]
)
def test_compiled_functions_communicate(ranks: int, transport: str) -> None:
    done = run_job(JOB, ranks, TFCOLLECTIVE_TRANSPORT=transport)
    assert done.stdout.count("ok ") == (7 if ranks == 1 else 8) * ranks


def test_a_lost_rank_ends_a_compiled_step() -> None:
    done = run_job(JOB, 2, "exit", expect=7)
    assert re.search(r"AbortedError: PEER_LOST: .*rank 1 .* is gone", done.stdout), done.stdout


def test_a_mismatch_shows_every_ranks_view() -> None:
    done = run_job(JOB, 2, "other")
    views = "rank 0: allreduce 'other' float32[3 elements] sum; rank 1: allreduce 'other' float32[3 elements] average"
    assert done.stdout.count("FailedPreconditionError: MISMATCH: the ranks disagree on 'other'") == 2, done.stdout
    assert views in done.stdout
