"""What docs/platforms.md says of a job in an allocation, where no other test of SLURM tries it."""

import os
import re

import pytest
from launching import JOIN, Run

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(600)]


def finish(slurm, *arguments):
    with slurm.allocation(1, 1) as environ, Run(("--launcher", "slurm", *arguments), env=environ) as job:
        code, out, err = job.finish(120)
        job.wait_until_gone(10.0)
    assert code == 0, err
    return out, err


def test_evaluator_and_tensorboard_are_on_node_1(slurm, tmp_path):
    program = "import os; print('I am', os.environ['TFCOLLECTIVE_TASK'], os.environ['SLURMD_NODENAME'])"
    specs = ("worker:instances=2", "evaluator", f"tensorboard:tb_model_dir={tmp_path}")
    roles = [word for spec in specs for word in ("--task-spec", spec)]
    out, err = finish(slurm, *roles, "python", "-c", program)
    assert sorted(re.findall(r"I am (\S+ \w+)", out)) == ["evaluator:0 node1", "worker:0 node1", "worker:1 node2"]
    assert "tensorboard:0: http://" in err


def test_restarted_ranks_keep_their_allocation(slurm, tmp_path):
    program = (
        f"{JOIN}\nc = join(); restarts = os.environ['TFCOLLECTIVE_RESTARTS']\n"
        "print('start', restarts, rank, os.environ['SLURMD_NODENAME'], os.environ['SLURM_JOB_ID'], flush=True)\n"
        "if restarts == '0': wait_until(2, 'running'); sys.exit(3) if rank == 1 else time.sleep(600)\n"
        "c.call(Leave(me.task))"
    )
    out, _ = finish(slurm, "--max-restarts", "1", "--log-dir", str(tmp_path), "python", "-c", program)
    starts = re.findall(r"start (\d \d \w+) (\d+)", out)
    assert sorted(where for where, _ in starts) == ["0 0 node1", "0 1 node2", "1 0 node1", "1 1 node2"]
    assert len({job for _, job in starts}) == 1
    logs = [tmp_path / "rank.1" / "stdout", tmp_path / "restart.1" / "rank.1" / "stdout"]
    assert [os.path.getsize(path) > 0 for path in logs] == [True, True]
