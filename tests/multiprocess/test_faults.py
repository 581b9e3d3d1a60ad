"""One rank fails in each phase of a job: all others raise in time and name it, and no process is left."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import Run, until
from time_limits import within

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]

WORKER = Path(__file__).with_name("fault_worker.py")
RANKS = 3
OP_TIMEOUT = 2.0
START_TIMEOUT = 4.0
NO_LIMIT = 100.0  # of operations and starts where no timeout is to end them
EXIT_CODE = {"kill": 137, "raise": 1, "exit": 3, "stop": 1}
TASKS_DID_NOT_START = 69


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def shared_memory() -> set[str]:
    """What a segment named after us would leave."""
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith("tfc")}


def timeouts(fault: str, phase: str) -> tuple[float, float]:
    """Of an operation and of the start: only who was stopped is found by one."""
    if fault != "stop":
        return NO_LIMIT, NO_LIMIT
    return OP_TIMEOUT, START_TIMEOUT if phase in ("rendezvous", "connect") else NO_LIMIT


def run_job(fault: str, phase: str, victim: int, directory: Path, transport: str) -> tuple[int, str]:
    """The job's exit code and what the launcher says; nothing may be left of it."""
    op_timeout, start_timeout = timeouts(fault, phase)
    options = ["-np", str(RANKS), "--transport", transport, "--op-timeout", str(op_timeout)]
    options += ["--start-timeout", str(start_timeout)]
    before = shared_memory()
    command = [sys.executable, str(WORKER), fault, phase, str(victim), str(directory)]
    with Run((*options, "--", *command)) as job:
        code, _, err = job.finish(60)
        job.wait_until_gone(1.0)
    until(lambda: shared_memory() <= before)  # other tests' segments come and go
    return code, err


def check_survivors(fault: str, phase: str, victim: int, directory: Path, err: str) -> None:
    ended = float((directory / "fault").read_text())
    allowed = 1.0
    if fault == "stop":
        allowed += START_TIMEOUT if phase in ("rendezvous", "connect") else OP_TIMEOUT
        allowed += 1.0 if phase == "connect" else 0.0  # rank 0 stays a second to tell the others
    for rank in set(range(RANKS)) - {victim}:
        path = directory / f"{rank}.json"
        assert path.exists(), f"rank {rank} was ended before it could raise\n{err}"
        seen = read(path)
        assert seen["error"] is not None, f"rank {rank} raised nothing\n{err}"
        name = f"worker:{victim}" if phase == "rendezvous" else f"rank {victim}"
        assert name in seen["message"], seen
        idle = 0.4 if phase == "idle" else 0.0  # the ranks sleep: none notices before it wakes
        assert seen["time"] - ended < within(allowed + idle), seen


@pytest.mark.parametrize("phase", ["rendezvous", "connect", "allreduce", "idle", "shutdown"])
@pytest.mark.parametrize("fault", ["kill", "raise", "exit", "stop"])
@pytest.mark.parametrize(("transport", "victim"), [("auto", 2), ("tcp", 0)])
def test_every_other_rank_raises(fault, phase, victim, transport, tmp_path):
    code, err = run_job(fault, phase, victim, tmp_path, transport)
    check_survivors(fault, phase, victim, tmp_path, err)
    late = fault == "stop" and phase == "rendezvous"
    assert code == (TASKS_DID_NOT_START if late else EXIT_CODE[fault]), err


@pytest.mark.parametrize("fault", ["kill", "raise"])
def test_a_failure_in_process_sets_reaches_everyone(fault, tmp_path):
    code, err = run_job(fault, "process_set", 2, tmp_path, "auto")
    check_survivors(fault, "process_set", 2, tmp_path, err)
    assert code == EXIT_CODE[fault], err


@pytest.mark.parametrize(
    ("fault", "victim", "transport"), [("kill", 2, "auto"), ("exit", 0, "tcp"), ("stop", 1, "auto")]
)
def test_ranks_that_have_joined_raise_too(fault, victim, transport, tmp_path):
    code, err = run_job(fault, "join", victim, tmp_path, transport)
    check_survivors(fault, "join", victim, tmp_path, err)
    assert code == EXIT_CODE[fault], err


@pytest.mark.parametrize("victim", [0, 1])
def test_the_report_names_the_victim_first(victim, tmp_path):
    code, err = run_job("raise", "allreduce", victim, tmp_path, "auto")
    assert code == 1
    report = err[err.index("the job failed") :]
    assert f"rank {victim} (worker:{victim}" in report.splitlines()[0]
    assert "ValueError: the disk is on fire" in report


def test_a_rank_stopping_early_names_its_steps(tmp_path):
    program = (
        "import numpy as np, tfcollective as tfc\n"
        "tfc.init()\n"
        "world = tfc.get_communicator()\n"
        "for step in range(5 + world.rank):\n"
        "    world.allreduce(np.ones(3, np.float32), name='gradient')\n"
    )
    begin = time.monotonic()
    with Run(("-np", "2", sys.executable, "-c", program)) as job:
        code, _, err = job.finish(30)
        job.wait_until_gone(1.0)
    assert code == 1
    assert "rank 0 left after 5 operations" in err
    assert "tfcollective.tensorflow.shard" in err
    assert time.monotonic() - begin < within(15)


def test_idle_ranks_use_no_cpu(tmp_path):
    program = (
        "import time, numpy as np, tfcollective as tfc\n"
        "tfc.init()\n"
        "tfc.get_communicator().allreduce(np.ones(3, np.float32))\n"
        "print('idle', flush=True)\n"
        "time.sleep(60)\n"
    )
    with Run(("-np", "2", sys.executable, "-c", program)) as job:
        for _ in range(2):
            job.wait_for_line("idle")
        workers = [psutil.Process(process.pid) for process in job.workers()]
        used = [sum(worker.cpu_times()[:2]) for worker in workers]
        begin = time.monotonic()
        time.sleep(3)  # what is measured
        more = [sum(worker.cpu_times()[:2]) - before for worker, before in zip(workers, used, strict=True)]
        # A rank that spins uses a core; a heartbeat takes milliseconds, on a slow machine some more.
        assert max(more) < 0.1 * (time.monotonic() - begin)
