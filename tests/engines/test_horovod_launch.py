"""Unmodified scripts for Horovod, on Horovod's engine, under tfcollective's launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from external_engines import python_with_horovod
from launching import Run

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("job_unmodified.py")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def test_an_unmodified_script_trains() -> None:
    with Run(("--engine", "horovod", "-np", "3", python_with_horovod(), str(SCRIPT)), env=QUIET) as job:
        code, out, err = job.finish(500)
    assert code == 0, err
    assert out.count("ok ") == 9
    assert "no rank called" not in err


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("raise ValueError('the disk is on fire')", 1, "the disk is on fire"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
    ],
)
def test_a_failing_rank_ends_the_job(end: str, code: int, how: str) -> None:
    program = (
        "import os, horovod.tensorflow as hvd, tensorflow as tf\n"
        "hvd.init()\n"
        "hvd.allreduce(tf.ones(3))\n"
        "if hvd.rank() == 1:\n"
        f"    {end}\n"
        "hvd.allreduce(tf.ones(3))\n"
    )
    with Run(("--engine", "horovod", "-np", "2", python_with_horovod(), "-c", program), env=QUIET) as job:
        got, _, err = job.finish(120)
        job.wait_until_gone(5.0)
    assert got == code
    assert "the job failed: rank 1 (worker:1" in err
    assert how in err
