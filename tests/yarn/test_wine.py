"""The wines on the real YARN, data and models on its HDFS: `make test-yarn` runs this with both TensorFlow versions."""

import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf
import yarn_jobs

import tfcollective
from tfcollective import TaskSpec, files

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(2400)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "winequality"
TRAINER = TaskSpec("1 GiB", 1)
EVERYBODY = {
    "chief": TRAINER,
    "worker": TaskSpec("1 GiB", 1, instances=2),
    "evaluator": TRAINER,
    "tensorboard": TaskSpec("900 MiB", 1, tb_termination_timeout_seconds=0, label="gpu"),
}


@pytest.fixture
def wine(on_yarn):
    """Runs an example's experiment; the module travels as a file."""

    def start(module, data, model_dir, launcher="yarn", epochs=2, **arguments):
        experiment = tfcollective.get_safe_experiment_fn(f"{module}.make_experiment", data, model_dir, epochs)
        env = on_yarn()["env"]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(EXAMPLE)]))
        return tfcollective.run_on_yarn(
            experiment,
            EVERYBODY,
            env=env if launcher == "local" else on_yarn()["env"],
            python=sys.executable if launcher == "yarn" else None,
            files={f"{module}.py": str(EXAMPLE / f"{module}.py")},
            launcher=launcher,
            start_timeout=600,
            **arguments,
        )

    return start


@pytest.fixture
def data_on_hdfs(hdfs):
    hdfs("dfs", "-put", *map(str, EXAMPLE.glob("*.csv")), hdfs.url)
    return hdfs.url


def check_everybody(yarn, metrics):
    assert metrics.auxiliary_tasks["evaluator:0"]["metrics"]["mae"] > 0
    assert metrics.auxiliary_tasks["tensorboard:0"]["url"].startswith("http://")
    assert set(metrics.container_duration) == {"chief:0", "worker:0", "worker:1", "evaluator:0", "tensorboard:0"}
    assert metrics.total_eval_duration.total_seconds() > 0
    assert yarn.app(metrics.app_id)["finalStatus"] == "SUCCEEDED"


def test_the_wines_with_keras_in_one_call(yarn, wine, data_on_hdfs, tmp_path):
    model_dir = f"{data_on_hdfs}/model"
    there = wine("keras_wine", data_on_hdfs, model_dir, eval_monitor_log_thresholds={"mae": (0.0, None)})
    check_everybody(yarn, there)
    here = wine("keras_wine", str(EXAMPLE), str(tmp_path / "here"), launcher="local")
    losses = [metrics.results[0]["loss"] for metrics in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    found = files.find_files(model_dir)
    assert {"checkpoint-0001.weights.h5", "checkpoint-0002.weights.h5", "model.keras", "eval/best/best.json"} <= set(
        found
    )
    assert any(name.startswith("train/") for name in found)
    with files.local_copy(f"{model_dir}/model.keras") as path:
        assert tf.keras.models.load_model(path, compile=False).count_params() == 12 * 32 + 32 + 32 + 1


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="this TensorFlow has no Estimators")
def test_the_wines_with_an_estimator_in_one_call(yarn, wine, data_on_hdfs, tmp_path):
    model_dir = f"{data_on_hdfs}/model"
    there = wine("estimator_wine", data_on_hdfs, model_dir)
    check_everybody(yarn, there)
    here = wine("estimator_wine", str(EXAMPLE), str(tmp_path / "here"), launcher="local")
    last = [metrics.auxiliary_tasks["evaluator:0"]["metrics"] for metrics in (there, here)]
    assert last[0]["global_step"] == last[1]["global_step"] == 108
    assert last[0]["loss"] == pytest.approx(last[1]["loss"], rel=1e-4)
    found = files.find_files(model_dir)
    assert {"checkpoint", "model.ckpt-0.index", "model.ckpt-108.index"} <= set(found)
    assert any(name.startswith("export/wine/") and name.endswith("saved_model.pb") for name in found)


@pytest.mark.parametrize("script", ["keras_wine.py", "estimator_wine.py"])
def test_the_examples_run_as_they_are(yarn, hdfs, script):
    if script == "estimator_wine.py" and not hasattr(tf, "estimator"):
        pytest.skip("this TensorFlow has no Estimators")
    command = [sys.executable, str(EXAMPLE / script), "--launcher", "yarn", "--python", sys.executable]
    command += ["--model-dir", f"{hdfs.url}/model", "--epochs", "1", "--linger", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert "the evaluator's last word" in done.stdout
    found = files.find_files(f"{hdfs.url}/model")
    assert any(name == "model.keras" or name.endswith("saved_model.pb") for name in found)


def test_a_killed_chief_resumes_with_equal_loss(yarn, on_yarn, hdfs, tmp_path, capfd):
    specs = {role: EVERYBODY[role] for role in ("chief", "worker")}

    def kill():
        yarn.until((tmp_path / "waited").exists, "the chief waits in its fourth epoch", 900)
        assert "checkpoint-0002.weights.h5" in files.list_files(hdfs.url)
        os.kill(yarn.process(yarn.only_app(), "tfcollective_launchers.yarn.container", "chief-0"), signal.SIGKILL)

    def start(model_dir, launcher, **arguments):
        experiment = functools.partial(yarn_jobs.experiment, model_dir, 12, 3 if launcher == "yarn" else None)
        env = {"env": on_yarn()["env"], "start_timeout": 600, "launcher": launcher}
        return tfcollective.run_on_yarn(experiment, specs, **env, **arguments).results[0]["loss"]

    threading.Thread(target=kill, daemon=True).start()
    killed = start(hdfs.url, "yarn", python=sys.executable, nb_retries=1)
    assert "all ranks are started again" in capfd.readouterr().err
    undisturbed = start(str(tmp_path / "undisturbed"), "local")
    assert len(killed) < len(undisturbed)  # it has not begun at the beginning
    assert killed[-1] == pytest.approx(undisturbed[-1], rel=1e-6)
