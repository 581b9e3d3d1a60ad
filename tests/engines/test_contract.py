"""One contract, three engines."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from external_engines import mpirun, only_tfcollective, path_with_mpi4py, python_with_horovod
from launching import Run

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "examples" / "keras_digits.py"
ENGINES = ("native", "horovod", "mpi")


def run(engine: str, folder: Path, ranks: int, script: Path, *arguments: str) -> str:
    """What the ranks print; they all end well."""
    expected = {"EXPECTED_SIZE": str(ranks), "EXPECTED_ENGINE": engine}
    python = python_with_horovod() if engine == "horovod" else sys.executable
    path = ("--env", f"PYTHONPATH={only_tfcollective(folder)}") if engine == "horovod" else ()
    env = {**expected, "TF_CPP_MIN_LOG_LEVEL": "3", **(path_with_mpi4py(folder) if engine == "mpi" else {})}
    with Run(("--engine", engine, "-np", str(ranks), *path, python, str(script), *arguments), env=env) as job:
        code, out, err = job.finish(500)
    assert code == 0, err[-6000:]
    return out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_numpy_arrays(engine: str, ranks: int, tmp_path: Path) -> None:
    if ranks == 1:
        assert run(engine, tmp_path, 1, HERE / "job_alone.py").count("ok") == 1
    else:
        assert run(engine, tmp_path, ranks, HERE / "job_contract.py").count("ok") == 7 * ranks


@pytest.mark.tensorflow
@pytest.mark.parametrize("engine", ENGINES)
def test_tensors(engine: str, tmp_path: Path) -> None:
    assert run(engine, tmp_path, 3, HERE / "job_tensors.py").count("ok") == 9 * 3


@pytest.mark.tensorflow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_digits_example_trains(engine: str, tmp_path: Path) -> None:
    out = run(engine, tmp_path, 2, DIGITS, "--model-dir", str(tmp_path / "models"))
    (accuracy,) = re.findall(r"held-out accuracy: ([0-9.]+)", out)
    assert float(accuracy) > 0.95


def test_numpy_arrays_under_mpirun_alone(tmp_path: Path) -> None:
    expected = {"EXPECTED_SIZE": "3", "EXPECTED_ENGINE": "mpi", "TFCOLLECTIVE_ENGINE": "mpi"}
    done = mpirun(tmp_path, 3, str(HERE / "job_contract.py"), **expected)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.count("ok") == 7 * 3


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("raise ValueError('the disk is on fire')", 1, "the disk is on fire"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("os._exit(3)", 3, "exited with code 3"),
    ],
)
def test_a_failing_mpi_rank_is_named(end: str, code: int, how: str, tmp_path: Path) -> None:
    program = (
        "import os, numpy as np, tfcollective as tfc\n"
        "tfc.init()\n"
        "world = tfc.get_communicator()\n"
        "world.allreduce(np.ones(3))\n"
        f"if world.rank == 1: {end}\n"
        "world.allreduce(np.ones(3))\n"
    )
    arguments = ("--engine", "mpi", "-np", "2", sys.executable, "-c", program)
    with Run(arguments, env=path_with_mpi4py(tmp_path)) as job:
        got, _, err = job.finish(120)
        job.wait_until_gone(10.0)
    assert got == code, err
    assert "the job failed: rank 1 (worker:1" in err
    assert how in err


def test_a_signal_ends_the_ranks_of_mpi(tmp_path: Path) -> None:
    program = "import time, tfcollective as tfc\ntfc.init()\nprint('ready', flush=True)\ntime.sleep(100)"
    arguments = ("--engine", "mpi", "-np", "2", sys.executable, "-c", program)
    with Run(arguments, env=path_with_mpi4py(tmp_path)) as job:
        job.wait_for_line("ready")
        job.signal(signal.SIGTERM)
        assert job.finish(60)[0] == 128 + signal.SIGTERM
        job.wait_until_gone(10.0)


def test_a_function_runs_on_ranks_of_mpi(tmp_path: Path) -> None:
    program = (
        "import tfcollective as tfc\n"
        "def where(word):\n"
        "    tfc.init()\n"
        "    return word, tfc.rank(), tfc.size()\n"
        "if __name__ == '__main__':\n"
        "    print(tfc.run(where, ('here',), np=2, use_mpi=True, mpi_args='--mca btl self,vader'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **path_with_mpi4py(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "[('here', 0, 2), ('here', 1, 2)]" in done.stdout, done.stderr


def test_mpi_ranks_that_fail_end_the_others(tmp_path: Path) -> None:
    program = (
        "import numpy as np, tfcollective as tfc\n"
        "tfc.init(engine='mpi')\n"
        "world = tfc.get_communicator()\n"
        "world.allreduce(np.ones(3))\n"
        "if world.rank == 1:\n"
        "    raise ValueError('the disk is on fire')\n"
        "world.allreduce(np.ones(3))\n"
    )
    done = mpirun(tmp_path, 2, "-c", program)
    assert done.returncode != 0
    assert "ValueError: the disk is on fire" in done.stderr


def test_mpi_writes_to_no_freed_memory(tmp_path: Path) -> None:
    """Rank 0 leaves an all-reduce that MPI still carries out, because rank 1 comes late; the result is whole there."""
    program = (
        "import time, numpy as np\n"
        "from tfcollective._runtime.communicator import Sum\n"
        "from tfcollective._runtime.engines.mpi import MpiCommunicator\n"
        "from tfcollective._base.errors import CollectiveTimeoutError\n"
        "world = MpiCommunicator.open(60.0)\n"
        "reduce = world._reduce\n"
        "def late(array, op, deadline):\n"
        "    time.sleep(10 * world.rank)\n"
        "    return reduce(array, op, deadline)\n"
        "world._reduce = late\n"
        "if world.rank == 1:\n"
        "    assert (world.allreduce(np.full(100, 7.0), Sum) == 8.0).all()\n"
        "else:\n"
        "    try:\n"
        "        world.allreduce(np.ones(100), Sum, timeout=5)\n"
        "    except CollectiveTimeoutError:\n"
        "        pass\n"
        "    mine = [np.full(100, -1.0) for _ in range(200)]\n"
        "    end = time.monotonic() + 8\n"
        "    while time.monotonic() < end:\n"
        "        world._comm.Iprobe()\n"
        "        time.sleep(0.01)\n"
        "    assert all((one == -1.0).all() for one in mine)\n"
        "print('whole', flush=True)\n"
    )
    done = mpirun(tmp_path, 2, "-c", program)
    assert done.stdout.count("whole") == 2, done.stderr


def test_mpi_waits_end_by_the_operation_timeout(tmp_path: Path) -> None:
    program = (
        "import time, numpy as np, tfcollective as tfc\n"
        "tfc.init(engine='mpi')\n"
        "world = tfc.get_communicator()\n"
        "if world.rank == 1:\n"
        "    time.sleep(100)\n"
        "try:\n"
        "    world.allreduce(np.ones(3), timeout=0.5)\n"
        "except tfc.CollectiveTimeoutError as error:\n"
        "    print('timed out', error, flush=True)\n"
        "    raise\n"
    )
    done = mpirun(tmp_path, 2, "-c", program)
    assert "timed out" in done.stdout
    assert done.returncode != 0
