"""Processes with a (stand-in) GPU each."""

import json
import os
import sys
from pathlib import Path

import pytest
from launching import Run
from standin import standins

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]

WORKER = Path(__file__).with_name("gpu_worker.py")
SUPPORT = Path(__file__).parents[1] / "support"
RANKS = 3
NO_VICTIM = -1


def run_job(victim: int, directory: Path) -> tuple[int, str]:
    folder = standins()
    environment = {
        "TFCOLLECTIVE_NCCL": str(folder / "libnccl_standin.so"),
        "TFCOLLECTIVE_CUDA_DRIVER": str(folder / "libcuda_standin.so"),
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
    }
    options = ["-np", str(RANKS), "--op-timeout", "50"]
    for name, value in environment.items():
        options += ["--env", f"{name}={value}"]
    with Run((*options, "--", sys.executable, str(WORKER), str(victim), str(directory))) as job:
        code, _, err = job.finish(60)
        job.wait_until_gone(1.0)
    return code, err


def read(directory: Path, rank: int) -> dict:
    return json.loads((directory / f"{rank}.json").read_text())


def test_processes_reduce_on_their_gpus(tmp_path):
    code, err = run_job(NO_VICTIM, tmp_path)
    assert code == 0, err
    assert [read(tmp_path, rank)["steps"] for rank in range(RANKS)] == [20] * RANKS


@pytest.mark.parametrize("victim", [2, 0])
def test_a_killed_rank_ends_others_before_timeouts(victim, tmp_path):
    code, err = run_job(victim, tmp_path)
    assert code == 137, err
    for rank in set(range(RANKS)) - {victim}:
        seen = read(tmp_path, rank)
        assert seen["error"] == "PeerLostError", seen
        assert seen["peer"] == victim, seen
