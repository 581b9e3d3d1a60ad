"""Jobs whose ranks use JAX's or torch's own collectives: started, ended and started again as all others."""

import re
import sys
from pathlib import Path

import pytest
from launching import run

pytestmark = [pytest.mark.foreign, pytest.mark.multiprocess, pytest.mark.timeout(900)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "keras_any_backend.py"
LONG = 300.0  # two ranks that import them on one busy core
ENVIRON = {"JAX_PLATFORMS": "cpu"}

# together() is the sum of rank + 1 over all ranks, by a collective of theirs.
PROGRAMS = {
    "jax": """
import os, sys, jax, numpy
from jax.experimental.multihost_utils import process_allgather
rank = int(os.environ["JAX_PROCESS_ID"])
def connect(): jax.distributed.initialize(num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=rank)
def together(): return int(process_allgather(numpy.array([rank + 1.0])).sum())
""",
    "torch": """
import os, sys, torch
rank = int(os.environ["RANK"])
def connect(): torch.distributed.init_process_group("gloo")
def together():
    total = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(total)
    return int(total)
""",
}
LIBRARIES = pytest.mark.parametrize("library", list(PROGRAMS))


def job(library, rest, *options, ranks=2):
    """Runs the program and ``rest`` on so many ranks."""
    command = (sys.executable, "-c", PROGRAMS[library] + rest)
    return run("-np", str(ranks), "--no-prefix", *options, *command, timeout=LONG, env=ENVIRON)


@LIBRARIES
def test_the_example_trains_one_model(library):
    code, out, err = run(
        "-np", "2", sys.executable, str(EXAMPLE), timeout=LONG, env={**ENVIRON, "KERAS_BACKEND": library}
    )
    assert code == 0, err
    found = re.findall(rf"rank (\d) of 2 with {library}: loss ([0-9.]+), weights (\w+)", out)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"], out
    assert len({weights for _, _, weights in found}) == 1
    assert all(float(loss) < 1.0 for _, loss, _ in found)


@LIBRARIES
def test_all_ranks_meet_in_one_world(library):
    code, out, err = job(library, "connect(); print('sum', together())", ranks=3)
    assert code == 0, err
    assert out.count("sum 6") == 3


@LIBRARIES
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_the_others(library, victim):
    rest = f"connect(); together()\nif rank == {victim}: os.kill(os.getpid(), 9)\nwhile True: together()"
    code, _, err = job(library, rest)
    assert code == 137
    assert f"the job failed: rank {victim} (worker:{victim}, pid " in err
    assert "was killed by SIGKILL\n" in err
    assert f"then rank {1 - victim} " in err


@LIBRARIES
def test_a_rank_that_dies_before_meeting_ends_all(library):
    """Each would wait for minutes for the other one."""
    code, _, err = job(library, "rank == 1 and sys.exit(3)\nconnect()")
    assert code == 3
    assert re.search(r"the job failed: rank 1 \(worker:1, pid \d+\) exited with code 3", err), err
    assert "then rank 0 (worker:0" in err


def test_an_error_of_jax_ends_the_job():
    """The rank waits in JAX's shutdown for the other one, which waits for it in a collective."""
    rest = """
import tfcollective
tfcollective.init()
connect(); together()
if rank == 1: raise RuntimeError("bad batch")
together()
"""
    code, _, err = job("jax", rest)
    assert code == 1
    assert re.search(
        r"rank 1 \(.*\) had not ended 10 s after its error, and was killed \(RuntimeError: bad batch\)", err
    )


@LIBRARIES
def test_a_restarted_job_meets_again(library):
    rest = """
connect(); together()
if rank == 1 and os.environ["TFCOLLECTIVE_RESTARTS"] == "0": os.kill(os.getpid(), 9)
print("sum", together(), os.environ["TFCOLLECTIVE_RESTARTS"])
"""
    code, out, err = job(library, rest, "--max-restarts", "1")
    assert code == 0, err
    assert out.count("sum 3 1") == 2
