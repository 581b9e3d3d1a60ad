"""Ranks on the engine of MPI that a real ``srun`` starts."""

import re
import sys

import pytest
import slurm_testbed
from external_engines import path_with_mpi4py

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]
PROGRAM = (
    "import numpy as np, tfcollective as tfc\n"
    "tfc.init()\n"
    "total = tfc.get_communicator().allreduce(np.full(3, tfc.rank() + 1), tfc.Sum)\n"
    "print('seen', tfc.rank(), tfc.size(), tfc.local_rank(), tfc.local_size(), int(total[0]), flush=True)\n"
    "tfc.shutdown()\n"
)


def test_the_engine_mpi(tmp_path_factory, tmp_path):
    reason = slurm_testbed.missing()
    if reason is not None:
        pytest.skip(reason)
    with slurm_testbed.slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        plugins = slurm.run("srun", "--mpi=list")
        if "pmix" not in plugins.stdout + plugins.stderr:
            pytest.skip("this SLURM has no plugin for PMIx, by which Open MPI learns who is who")
        path = path_with_mpi4py(tmp_path)
        words = ("srun", "--mpi=pmix", "-N1", "-n3", sys.executable, "-c", PROGRAM)
        done = slurm.run(*words, check=False, TFCOLLECTIVE_ENGINE="mpi", **path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"seen (.*)", done.stdout)) == [f"{rank} 3 {rank} 3 6" for rank in range(3)]
