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

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
KERAS_3 = hasattr(tf.keras, "distribution")
OPTIONS = () if KERAS_3 else ("--data-parallel",)  # of Keras 3 the job says it itself
JOB = Path(__file__).with_name("job_data_parallel.py")
PARTS = 6  # of the programs, each a test of about a minute
# Those that depend on how batches are cut: with three ranks some have no rows, and evaluate no batch.
CUT = (
    "batches_smaller_than_the_world one_row_at_a_time a_dataset eagerly single_batches evaluation_and_prediction "
    "a_dataset_whose_rows_are_computed steps_of_validation a_model_that_a_prediction_builds "
    "predictions_that_are_gathered metrics_that_are_no_sums masked_tokens batch_normalization "
    "batch_normalization_in_a_step_of_its_own"
)
NO_ROWS = (
    "one_number_of_a_class metrics_in_a_layer_of_no_rows more_metrics_in_a_layer_of_no_rows mixed_precision "
    "vocabularies_of_layers_in_a_step sparse_rows_beside_dense_ones a_training_step_of_the_object"
)
MODULE = "tf_keras" if tf.keras.Model.__module__.startswith("tf_keras") else "keras"
SCRIPT = """
import os
import numpy as np
import MODULE as keras

x = np.random.default_rng().normal(size=(50, 4)).astype("float32") + np.random.normal()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=2, verbose=0)
model.save("model.keras")
result = keras.models.load_model("model.keras").evaluate(x, x.sum(axis=1, keepdims=True), verbose=0)
print(f"result {result!r} of {x.sum()!r}")
print("TFCOLLECTIVE_DATA_PARALLEL" in os.environ, "sitecustomize of the user" if os.environ.get("RAN") else "")
""".replace("MODULE", MODULE)


def programs_of(script: Path) -> list[str]:
    pattern = f"^@program(?:_of_keras_{3 if KERAS_3 else 2})?\\b.*\\n(?:@.*\\n)*def (\\w+)"
    return re.findall(pattern, script.read_text(), re.MULTILINE)


def compare(ranks: int, names: list[str], place: Path, script: Path = JOB) -> None:
    """Runs programs in one process and on ranks, with oneDNN, TensorFlow's default: its convolutions know no empty
    batches.
    """
    run_job(script, 1, str(place / "numbers"), *names)
    done = run_job(script, ranks, str(place / "numbers"), *names, options=OPTIONS, TF_ENABLE_ONEDNN_OPTS="1")
    assert done.stdout.count("ok ") == ranks * len(names)


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_on_two_ranks(part: int, tmp_path: Path) -> None:
    compare(2, programs_of(JOB)[part::PARTS], tmp_path)


@pytest.mark.parametrize("part", range(2))
def test_batches_smaller_than_three_ranks(part: int, tmp_path: Path) -> None:
    names = [*CUT.split(), *(["stopping_an_evaluation", "steps_that_xla_compiles"] if KERAS_3 else [])]
    compare(3, names[part::2], tmp_path)


def test_layers_of_ranks_without_rows(tmp_path: Path) -> None:
    compare(3, NO_ROWS.split(), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("ranks", [3, 4])
def test_programs_on_more_ranks(ranks: int, part: int, tmp_path: Path) -> None:
    compare(ranks, programs_of(JOB)[part::PARTS], tmp_path)


def test_metrics_of_keras_on_three_ranks() -> None:
    done = run_job(JOB.with_name("job_metrics.py"), 3)
    assert done.stdout.count(": []") == 3


@pytest.mark.long
@pytest.mark.skipif(not KERAS_3, reason="not tried with Keras 2")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_more_programs(ranks: int, part: int, tmp_path: Path) -> None:
    job = JOB.with_name("job_data_parallel_more.py")
    compare(ranks, programs_of(job)[part::PARTS], tmp_path, job)


@pytest.mark.skipif(KERAS_3, reason="with Keras 3 it is one of the programs of the other tests")
def test_evaluation_after_training_by_hand(tmp_path: Path) -> None:
    for ranks in (1, 2):
        run_job(JOB, ranks, str(tmp_path / "numbers"), "evaluation_of_a_script_that_divides_by_hand")


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


def test_local_moments_of_no_rows(tmp_path: Path) -> None:
    layers = "[keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]"
    script = re.sub(r"\[keras.Input.*\]", layers, SCRIPT)
    (tmp_path / "train.py").write_text(script + "print('finite', np.isfinite(model.get_weights()[3]).all())")
    options = ("--data-parallel", "--batch-norm", "local", "--cwd", str(tmp_path))
    done = run_job(tmp_path / "train.py", 3, options=options)
    assert done.stdout.count("finite True") == 3, done.stdout


DRAWS = """
import tensorflow as tf

class Draws(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.turn = tf.keras.layers.Dropout(0.5), tf.keras.layers.RandomRotation(0.5)
        self.flat = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.flat(x)

    def train_step(self, data):
        self(data)
        kept = tf.reduce_sum(self.drop(tf.range(1.0, 3000.0), training=True))
        image = self.turn(tf.reshape(tf.range(192.0), (1, 8, 8, 3)), training=True)
        noise = tf.reduce_sum(tf.random.normal((100,)))
        return {"kept": kept, "turned": tf.reduce_sum(image[0, 0]), "noise": noise}

model = Draws()
model.compile("sgd")
show = lambda batch, logs: print("drawn", *(float(logs[name]) for name in sorted(logs)), flush=True)
each = tf.keras.callbacks.LambdaCallback(on_train_batch_end=show)
model.fit(tf.ones((12, 2)), batch_size=4, verbose=0, callbacks=[each])
"""


def test_ranks_draw_different_numbers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DRAWS)
    done = run_job(tmp_path / "train.py", 2, options=("--data-parallel",))
    drawn = re.findall(r"drawn (\S+) (\S+) (\S+)", done.stdout)
    assert len(drawn) == 6
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [6, 6, 6], drawn


@pytest.mark.skipif(MODULE == "keras", reason="one Keras is installed")
def test_training_with_another_keras_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace(MODULE, "keras"))
    done = run_job(tmp_path / "train.py", 2, options=("--data-parallel", "--cwd", str(tmp_path)), expect=None)
    assert "divides the work of tf_keras" in done.stderr


def test_a_wrapped_optimizer_is_refused(tmp_path: Path) -> None:
    wrapped = SCRIPT.replace('"adam"', "tfk.DistributedOptimizer('adam')").replace(
        "import os", "import os\nimport tfcollective.keras as tfk"
    )
    (tmp_path / "train.py").write_text(wrapped)
    done = run_job(tmp_path / "train.py", 2, options=("--data-parallel",), expect=None)
    assert "DataParallel divides batches and reduces by itself" in done.stderr
