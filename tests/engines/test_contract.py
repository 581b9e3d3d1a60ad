"""One contract, three engines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from foreign import mpirun, only_tfcollective, python_with_horovod
from launching import Run

pytestmark = [pytest.mark.engines, pytest.mark.multiprocess, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "examples" / "keras_digits.py"
ENGINES = ("native", "horovod", "mpi")


def run(engine: str, folder: Path, ranks: int, script: Path, *arguments: str) -> str:
    """What the ranks print; they all end well."""
    expected = {"EXPECTED_SIZE": str(ranks), "EXPECTED_ENGINE": engine}
    if engine == "mpi":
        done = mpirun(folder, ranks, str(script), *arguments, **expected, TFCOLLECTIVE_ENGINE="mpi")
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout
    python = sys.executable if engine == "native" else python_with_horovod()
    path = ("--env", f"PYTHONPATH={only_tfcollective(folder)}") if engine == "horovod" else ()
    env = {**expected, "TF_CPP_MIN_LOG_LEVEL": "3"}
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
    assert run(engine, tmp_path, 2, HERE / "job_tensors.py").count("ok") == 7 * 2


@pytest.mark.tensorflow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_digits_example_trains(engine: str, tmp_path: Path) -> None:
    out = run(engine, tmp_path, 2, DIGITS, "--model-dir", str(tmp_path / "models"))
    (accuracy,) = re.findall(r"held-out accuracy: ([0-9.]+)", out)
    assert float(accuracy) > 0.95


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
