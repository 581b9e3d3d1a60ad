"""Ranks and agents that a plain ``srun`` starts, on one node and on several."""

import re
import sys

import pytest
from launching import Run

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(600)]
PROGRAM = (
    "import numpy as np, tfcollective as tfc\n"
    "tfc.init()\n"
    "total = tfc.get_communicator().allreduce(np.full(3, tfc.rank() + 1), tfc.Sum)\n"
    "print('seen', tfc.rank(), tfc.size(), tfc.local_rank(), tfc.local_size(), int(total[0]), flush=True)\n"
    "tfc.shutdown()\n"
)
SEEN = [f"{rank} 3 {rank} 3 6" for rank in range(3)]


def seen(out):
    return sorted(re.findall(r"seen (.*)", out))


def test_ranks_meet_without_a_launcher(slurm):
    done = slurm.run("srun", "-N1", "-n3", sys.executable, "-c", PROGRAM)
    assert seen(done.stdout) == SEEN


def test_a_rank_that_fails_ends_the_step(slurm):
    failing = PROGRAM.replace("print(", "assert tfc.rank() != 1, 'the disk is on fire'\nprint(", 1)
    failing = failing.replace("tfc.shutdown()", "tfc.get_communicator().allreduce(np.ones(3))")
    done = slurm.run("srun", "-N1", "-n3", sys.executable, "-c", failing, check=False)
    assert done.returncode != 0
    assert "AssertionError: the disk is on fire" in done.stderr


def test_agents(slurm, tmp_path):
    arguments = ("--wait-for-agents", "2", "--network-interface", "lo", "--key-file", str(tmp_path / "job.key"))
    with Run(("-np", "3", *arguments, sys.executable, "-c", PROGRAM)) as one:
        join = next(line for line in one.process.stderr if "agent --join" in line).split()
        done = slurm.run("srun", "-N1", "-n2", sys.executable, "-m", *join)
        code, _, err = one.finish(60)
        assert code == 0, err
        one.wait_until_gone(10.0)
    assert seen(done.stdout) == SEEN
