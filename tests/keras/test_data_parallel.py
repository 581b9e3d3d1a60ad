"""Programs that know nothing of several ranks, on real processes: see the job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from jobs import QUIET, run_job
from time_limits import within

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(not hasattr(tf.keras, "distribution"), reason="Keras 2 has no keras.distribution"),
]
JOB = Path(__file__).with_name("job_data_parallel.py")
# Those that depend on how batches are cut: with three ranks some have no rows, and evaluate no batch.
CUT = (
    "batches_smaller_than_the_world one_row_at_a_time a_dataset eagerly single_batches evaluation_and_prediction "
    "a_dataset_whose_rows_are_computed steps_of_validation"
)
SCRIPT = """
import os
import numpy as np
import keras

x = np.random.default_rng().normal(size=(50, 4)).astype("float32") + np.random.normal()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=2, verbose=0)
model.save("model.keras")
result = keras.models.load_model("model.keras").evaluate(x, x.sum(axis=1, keepdims=True), verbose=0)
print(f"result {result!r} of {x.sum()!r}")
print("TFCOLLECTIVE_DATA_PARALLEL" in os.environ, "sitecustomize of the user" if os.environ.get("RAN") else "")
"""


def test_programs_on_two_ranks() -> None:
    done = run_job(JOB, 2)
    assert done.stdout.count("ok ") == 2 * len(re.findall("^@program$", JOB.read_text(), re.MULTILINE))


def test_batches_smaller_than_three_ranks() -> None:
    done = run_job(JOB, 3, *CUT.split())
    assert done.stdout.count("ok ") == 3 * len(CUT.split())


def test_an_unmodified_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['RAN'] = '1'\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run_job(
        tmp_path / "train.py", 2, options=("--data-parallel", "--cwd", str(tmp_path)), whole=True, **environment
    )
    results = re.findall(r"result .*", done.stdout)
    assert len(results) == 2
    assert len(set(results)) == 1
    assert done.stdout.count("False sitecustomize of the user") == 2


EXPERIMENT = """
import sys
import tfcollective
from tfcollective import TaskSpec

def experiment():
    import numpy as np
    import tensorflow as tf
    from tfcollective.keras import KerasExperiment

    def model():
        made = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        made.compile("adam", "mse")
        return made

    rows = np.ones((20, 4), np.float32)
    parts = [lambda: rows, lambda: rows[:, :1], lambda: (rows, rows[:, :1])]
    return KerasExperiment(model, "trained", {"epochs": 1, "verbose": 0}, *parts)

specs = {name: TaskSpec("1 GiB", 1, instances=n) for name, n in (("worker", 2), ("evaluator", 1))}
print("results", tfcollective.run(experiment, task_specs=specs, data_parallel=True))
"""


def test_an_evaluator_works_for_itself(tmp_path: Path) -> None:
    environment = {**os.environ, **QUIET}
    done = subprocess.run(
        [sys.executable, "-c", EXPERIMENT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=within(250),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "results [{'loss':" in done.stdout
    assert "evaluator:0 (pid" not in done.stderr, done.stderr[-4000:]


def test_a_wrapped_optimizer_is_refused(tmp_path: Path) -> None:
    wrapped = SCRIPT.replace('"adam"', "tfk.DistributedOptimizer('adam')").replace(
        "import os", "import os\nimport tfcollective.keras as tfk"
    )
    (tmp_path / "train.py").write_text(wrapped)
    done = run_job(tmp_path / "train.py", 2, options=("--data-parallel",), expect=None)
    assert "DataParallel divides batches and reduces by itself" in done.stderr
