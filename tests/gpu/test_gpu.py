"""The matrix for real GPUs: on stand-ins everywhere, on a GPU where there is one (`make test-gpu`)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import standin

from tfcollective._base.machine.gpus import visible_gpus
from tfcollective._base.settings import environ_snapshot
from tfcollective._runtime.communicator import NativeCommunicator

MATRIX = Path(__file__).with_name("gpu_matrix.py")


def load_matrix():
    spec = importlib.util.spec_from_file_location("gpu_matrix", MATRIX)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_matrix_itself_on_a_stand_in():
    matrix = load_matrix()
    with NativeCommunicator.alone(options=standin.options()) as world:
        cases = matrix.check_matrix(world, standin.GpuArray, standin.host)
    scaled = sum(dtype.startswith("float") for dtype in matrix.TYPES)
    assert cases == (len(matrix.TYPES) * 6 - len(matrix.NOT_AVERAGED) + scaled) * len(matrix.SIZES)


def missing():
    """Why the tests cannot run on a GPU here; empty if they can."""
    if not visible_gpus(environ_snapshot()):
        return "no GPU: the NVIDIA driver shows none"
    return "" if importlib.util.find_spec("cupy") else "CuPy is not installed"


@pytest.mark.gpu
@pytest.mark.timeout(2000)
@pytest.mark.skipif(missing() != "", reason=missing() or "there is a GPU")
def test_everything_on_a_gpu():
    done = subprocess.run([sys.executable, str(MATRIX)], capture_output=True, text=True, timeout=1900)
    assert done.returncode == 0, done.stdout + done.stderr
