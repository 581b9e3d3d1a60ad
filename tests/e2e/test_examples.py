"""Every example, as examples/README.md tells to type it: on several processes and on one."""

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from by_hand import free_port
from jobs import run_job
from launching import until
from time_limits import within

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.multiprocess]


def accuracy_in(output: str) -> float:
    (text,) = re.findall(r"held-out accuracy: ([0-9.]+)", output)
    return float(text)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pi_needs_no_tensorflow(ranks):
    done = run_job(EXAMPLES / "numpy_pi.py", ranks)
    assert re.search(rf"pi is 3\.14159265359.* computed by {ranks} process", done.stdout)


def test_tf_config_on_three_hosts_started_by_hand():
    folder = EXAMPLES / "tf_config"
    command = [sys.executable, "hosts.py", "--port", str(free_port()), "python", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=within(60))
    assert "y = 3.00 x + 1.00" in done.stdout
    # Three processes write to one pipe: their lines may share a line.
    for rank, task in enumerate(("chief:0", "worker:0", "worker:1")):
        assert f"{task} is rank {rank} of 3" in done.stdout


def test_two_jobs_at_one_port_stay_apart(tmp_path):
    end = tmp_path / "end"
    program = f"import os, time, tfcollective as t; t.init()\nwhile not os.path.exists({str(end)!r}): time.sleep(0.1)"
    command = [sys.executable, "hosts.py", "--port", str(free_port()), "python", "-c", program]
    jobs = [subprocess.Popen(command, cwd=EXAMPLES / "tf_config", stderr=subprocess.PIPE, text=True) for _ in range(2)]
    until(lambda: any(job.poll() is not None for job in jobs), 60)
    time.sleep(2.0)  # ranks of the other job that are late may still come
    end.touch()
    errors = {job.communicate(timeout=within(60))[1]: job.returncode for job in jobs}
    assert sorted(errors.values()) == [0, 75], errors


@pytest.mark.tensorflow
def test_digits_reach_95_percent_and_one_model(tmp_path):
    done = run_job(EXAMPLES / "keras_digits.py", 2, "--model-dir", str(tmp_path / "models"), whole=True)
    assert accuracy_in(done.stdout) > 0.95
    (model,) = (tmp_path / "models").iterdir()
    assert f"model saved to {model}" in done.stdout
    # It loads where tfcollective is not imported, with Keras's own optimizer.
    program = (
        f"import sys, tensorflow as tf; model = tf.keras.models.load_model({str(model)!r});"
        "assert 'tfcollective' not in sys.modules; assert type(model.optimizer).__name__ == 'Adam'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=within(120))


@pytest.mark.long
@pytest.mark.tensorflow
def test_digits_run_unchanged_without_the_launcher(tmp_path):
    command = [sys.executable, str(EXAMPLES / "keras_digits.py"), "--epochs", "1", "--model-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=within(150))
    assert 0 <= accuracy_in(done.stdout) <= 1


@pytest.mark.long
@pytest.mark.tensorflow
def test_the_example_of_two_faster_processes_learns():
    done = run_job(EXAMPLES / "faster_together.py", 2, "--epochs", "2", whole=True)
    (accuracy, rate) = re.findall(r"accuracy ([0-9.]+), [0-9.]+ s for an epoch, (\d+) images/s", done.stdout)[0]
    assert float(accuracy) > 0.9
    assert int(rate) > 0


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_custom_loop_learns_with_a_timeline(tmp_path):
    trace = tmp_path / "trace.json"
    done = run_job(EXAMPLES / "custom_loop.py", 2, whole=True, TFCOLLECTIVE_TIMELINE=str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    buckets = {(event["pid"], event["cat"]) for event in events if "/bucket 0" in event["name"]}
    assert buckets >= {(0, "allreduce"), (1, "allreduce")}
    assert any(event["cat"] == "wait" for event in events)
    assert accuracy_in(done.stdout) > 0.93
    assert done.stdout.count("epoch 1/10") == 1


@pytest.mark.long
@pytest.mark.tensorflow
def test_uneven_data_train_to_the_longest_end():
    done = run_job(EXAMPLES / "uneven_data.py", 3)
    for rank in range(3):
        assert f"rank {rank} made {40 + 15 * rank} steps, rank 2 the most" in done.stdout
    (error,) = re.findall(r"largest error of a weight: ([0-9.]+)", done.stdout)
    assert float(error) < 0.01


@pytest.mark.kill
@pytest.mark.elastic
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["elastic_fit", "elastic_loop"])
def test_elastic_training_goes_on_without_a_lost_process(name):
    done = run_job(EXAMPLES / f"{name}.py", 3, "--lose", "1", options=("--min-np", "1"))
    assert "y = 3.00 x + 1.00 after 5 epochs" in done.stdout
    (steps,) = re.findall(r"([0-9]+) steps, [23] processes at the end", done.stdout)
    assert 32 + 4 * 32 <= int(steps) <= 32 + 4 * 47  # of three processes; of two
    assert "worker:1" in done.stderr


@pytest.mark.long
@pytest.mark.tensorflow
def test_groups_of_processes_train_side_by_side():
    done = run_job(EXAMPLES / "process_sets.py", 3)
    found = dict(re.findall(r"rank (\d): learning rate \S+, slope ([0-9.]+)", done.stdout))
    assert 0 < float(found["0"]) < 1
    assert float(found["1"]) == float(found["2"]) == pytest.approx(3.0, abs=0.01)


@pytest.mark.long
@pytest.mark.tensorflow
def test_the_synthetic_benchmark_counts_all_processes():
    done = run_job(EXAMPLES / "synthetic_benchmark.py", 2, "--rounds", "2", "--batches", "2", "--fp16-allreduce")
    rates = re.findall(r"images/s of (rank 0|all 2 processes): ([0-9.]+) \+- [0-9.]+", done.stdout)
    assert [who for who, _ in rates] == ["rank 0", "all 2 processes"]
    assert float(rates[1][1]) > float(rates[0][1]) > 0


@pytest.mark.long
@pytest.mark.tensorflow
def test_an_estimator_trains_with_horovods_hook(tmp_path):
    tf = pytest.importorskip("tensorflow")
    if not hasattr(tf, "estimator"):
        pytest.skip("this TensorFlow has no Estimator")
    done = run_job(EXAMPLES / "estimator_hook.py", 2, "--model-dir", str(tmp_path))
    assert "y = 2.00 x + -1.00" in done.stdout
    assert list(tmp_path.glob("model.ckpt-100.*"))


@pytest.mark.long
@pytest.mark.tensorflow
def test_mnist_files_plain_and_gzipped():
    done = run_job(EXAMPLES / "keras_mnist.py", 2, "--data", str(ROOT / "tests" / "data" / "mnist"), "--epochs", "8")
    assert accuracy_in(done.stdout) > 0.8


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "has no MNIST files"),
        ("train-images-idx3-ubyte", b"PNG", "is not an IDX file"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x01\0\0\0\x09abc", "is damaged"),
    ],
)
def test_mnist_says_what_is_wrong_with_the_files(tmp_path, name, content, message):
    if name is not None:
        (tmp_path / name).write_bytes(content)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(content)
    specification = importlib.util.spec_from_file_location("keras_mnist", EXAMPLES / "keras_mnist.py")
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    with pytest.raises(SystemExit, match=message):
        example.load_data(tmp_path)
