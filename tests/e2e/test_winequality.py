"""The wine examples: three ranks, an evaluator and a TensorBoard in one job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from jobs import QUIET
from time_limits import within

from tfcollective.auxiliary_tasks import find_checkpoints

WINE = Path(__file__).resolve().parents[2] / "examples" / "winequality"
pytestmark = [pytest.mark.multiprocess, pytest.mark.tensorflow, pytest.mark.timeout(900)]


def run_example(script, model_dir, epochs):
    command = [
        sys.executable,
        str(WINE / script),
        "--epochs",
        str(epochs),
        "--linger",
        "0",
        "--model-dir",
        str(model_dir),
    ]
    done = subprocess.run(
        command, env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=within(280), cwd=model_dir.parent
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert re.search(r"^tfcollective: tensorboard:0: http://127\.0\.0\.1:\d+/$", done.stderr, re.M)
    assert "tfcollective: evaluator:0: last training step" in done.stderr
    (error,) = re.findall(r"the evaluator's last word, on .*'mae': ([0-9.]+)", done.stdout)
    return float(error), done


@pytest.mark.long
def test_a_keras_experiment(tmp_path):
    error, done = run_example("keras_wine.py", tmp_path / "model", 2)
    assert error < 1.5  # of marks from 0 to 10: the mean alone gives 0.69, an untrained model 5.8
    assert "evaluator:0: last training step 2, " in done.stderr
    assert {one.name for one in find_checkpoints(tmp_path / "model")} == {
        "checkpoint-0001.weights.h5",
        "checkpoint-0002.weights.h5",
        "model.keras",
    }
    assert list((tmp_path / "model" / "eval").glob("events.*"))
    assert (tmp_path / "model" / "eval" / "best" / "best.json").exists()
    assert "training ended with a loss of" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_an_estimator(tmp_path):
    error, done = run_example("estimator_wine.py", tmp_path / "model", 2)
    assert error < 1.5
    assert "evaluator:0: last training step 108, " in done.stderr
    assert "trained 108 steps" in done.stdout
    assert len(list((tmp_path / "model" / "export" / "wine").iterdir())) == 1  # the evaluator's; the chief makes none
