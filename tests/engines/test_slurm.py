"""Ranks and agents that a real ``srun`` starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_testbed
from external_engines import path_with_mpi4py
from launching import Run
from time_limits import within

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]
PROGRAM = (
    "import numpy as np, tfcollective as tfc\n"
    "tfc.init()\n"
    "total = tfc.get_communicator().allreduce(np.full(3, tfc.rank() + 1), tfc.Sum)\n"
    "print('seen', tfc.rank(), tfc.size(), tfc.local_rank(), tfc.local_size(), int(total[0]), flush=True)\n"
    "tfc.shutdown()\n"
)
SEEN = [f"{rank} 3 {rank} 3 6" for rank in range(3)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    reason = slurm_testbed.missing()
    if reason is not None:
        pytest.skip(reason)
    with slurm_testbed.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


def srun(slurm: dict[str, str], *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["srun", *words],
        env={**os.environ, **slurm, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within(120),
        check=False,
    )


def seen(out: str) -> list[str]:
    return sorted(re.findall(r"seen (.*)", out))


def test_ranks_meet_without_a_launcher(slurm: dict[str, str]) -> None:
    done = srun(slurm, "-n", "3", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert seen(done.stdout) == SEEN


def test_a_rank_that_fails_ends_the_step(slurm: dict[str, str]) -> None:
    failing = PROGRAM.replace("print(", "assert tfc.rank() != 1, 'the disk is on fire'\nprint(", 1)
    failing = failing.replace("tfc.shutdown()", "tfc.get_communicator().allreduce(np.ones(3))")
    done = srun(slurm, "-n", "3", sys.executable, "-c", failing)
    assert done.returncode != 0
    assert "AssertionError: the disk is on fire" in done.stderr


def test_the_engine_mpi(slurm: dict[str, str], tmp_path: Path) -> None:
    plugins = srun(slurm, "--mpi=list")
    if "pmix" not in plugins.stdout + plugins.stderr:
        pytest.skip("this SLURM has no plugin for PMIx, by which Open MPI learns who is who")
    path = path_with_mpi4py(tmp_path)
    done = srun(slurm, "--mpi=pmix", "-n", "3", sys.executable, "-c", PROGRAM, TFCOLLECTIVE_ENGINE="mpi", **path)
    assert done.returncode == 0, done.stderr
    assert seen(done.stdout) == SEEN


def test_agents(slurm: dict[str, str], tmp_path: Path) -> None:
    arguments = ("--wait-for-agents", "2", "--network-interface", "lo", "--key-file", str(tmp_path / "job.key"))
    with Run(("-np", "3", *arguments, sys.executable, "-c", PROGRAM)) as one:
        join = next(line for line in one.process.stderr if "agent --join" in line).split()
        done = srun(slurm, "-n", "2", sys.executable, "-m", *join)
        assert done.returncode == 0, done.stderr
        code, _, err = one.finish(60)
        assert code == 0, err
        one.wait_until_gone(10.0)
    assert seen(done.stdout) == SEEN
