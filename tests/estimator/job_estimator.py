"""Trains an Estimator on all ranks: job_estimator.py DIR. Compares with the same in numpy; at last rank 1 fails."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError
from tfcollective.estimator import Experiment, run_estimator_evaluator, train_and_evaluate

tfc.init()
rank, size = tfc.rank(), tfc.size()
model_dir = Path(sys.argv[1])
v1 = tf.compat.v1
rng = np.random.default_rng(3)
X = rng.normal(size=(64, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]])).astype(np.float32)
RATE, SHARE = 0.1, 4
fails = False


class Fail(v1.train.SessionRunHook):
    def after_run(self, run_context: object, run_values: object) -> None:
        self.count = getattr(self, "count", 0) + 1
        if fails and rank == 1 and self.count == 3:
            raise ArithmeticError("on purpose")


class Chiefs(v1.train.SessionRunHook):
    begun = 0

    def begin(self) -> None:
        Chiefs.begun += 1


def model_fn(features: object, labels: object, mode: object, params: dict) -> object:
    start = v1.initializers.constant(float(rank))  # differs from rank to rank on purpose
    kernel = v1.get_variable("kernel", [4, 1], initializer=start)
    loss = tf.reduce_mean((features @ kernel - labels) ** 2)
    v1.summary.scalar("size_of_kernel", tf.norm(kernel))
    optimizer = v1.train.GradientDescentOptimizer(RATE)
    if params["distributed"]:
        optimizer = tfc.DistributedOptimizer(optimizer)
    train_op = optimizer.minimize(loss, v1.train.get_global_step()) if mode == "train" else None
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_chief_hooks=[Chiefs()])


def train_input() -> object:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return tfc.shard(data).batch(SHARE).repeat()


def eval_input() -> object:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)


class Noted(tf.estimator.Exporter):
    def __init__(self) -> None:
        self.exports = []

    @property
    def name(self) -> str:
        return "noted"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export) -> None:
        self.exports.append((int(eval_result["global_step"]), is_the_final_export, Path(export_path).parent.name))


def experiment(max_steps: int, distributed: bool = True, directory: Path | str = model_dir) -> Experiment:
    config = tf.estimator.RunConfig(
        str(directory), save_checkpoints_steps=2, save_summary_steps=1, log_step_count_steps=2, keep_checkpoint_max=50
    )
    estimator = tf.estimator.Estimator(model_fn, params={"distributed": distributed}, config=config)
    train = tf.estimator.TrainSpec(train_input, max_steps, hooks=[Fail()])
    return Experiment(estimator, train, tf.estimator.EvalSpec(eval_input, steps=None, exporters=[Noted()]))


def expected(steps: int) -> np.ndarray:
    """The kernel after so many steps from rank 0's start, on the global batches."""
    kernel = np.zeros((4, 1), np.float64)
    batch = SHARE * size
    for step in range(steps):
        places = np.arange(step * batch, (step + 1) * batch) % len(X)
        kernel -= RATE * 2 / batch * X[places].T @ (X[places] @ kernel - Y[places])
    return kernel


def check_kernel(steps: int) -> None:
    if rank == 0:
        found = tf.train.load_checkpoint(str(model_dir)).get_tensor("kernel")
        np.testing.assert_allclose(found, expected(steps), rtol=1e-5, atol=1e-6)


def files() -> set[str]:
    return {path.name for path in model_dir.iterdir()} if model_dir.exists() else set()


first = experiment(4)
result = first.train()
check_kernel(4)
assert Chiefs.begun == (rank == 0)
if rank == 0:
    assert result.global_step == 4
    np.testing.assert_allclose(result.metrics["loss"], np.mean((X @ expected(4) - Y) ** 2), rtol=1e-4)
    assert first.eval_spec.exporters[0].exports == [(4, True, "export")]
    assert len([name for name in files() if name.startswith("events")]) == 1
    assert {f"model.ckpt-{step}.index" for step in (0, 2, 4)} <= files()
print("ok trained", flush=True)

before = Chiefs.begun
assert experiment(4).train().metrics.keys() == result.metrics.keys()  # nothing to train: no rank waits for another
assert Chiefs.begun == before
print("ok trained already", flush=True)

# The data begin again in a new session: with 8 steps an epoch, step 4 sees what step 0 saw.
kernel = expected(4)
third = experiment(6)
third.train()
batch = SHARE * size
for step in range(2):
    places = np.arange(step * batch, (step + 1) * batch) % len(X)
    kernel -= RATE * 2 / batch * X[places].T @ (X[places] @ kernel - Y[places])
if rank == 0:
    found = tf.train.load_checkpoint(str(model_dir)).get_tensor("kernel")
    np.testing.assert_allclose(found, kernel, rtol=1e-5, atol=1e-6)
print("ok restored", flush=True)

if rank == 0:
    figures: list = []
    one = experiment(6)
    done = run_estimator_evaluator(*vars(one).values(), poll_interval=0.05, on_figures=figures.append)
    exporter = one.eval_spec.exporters[0]
    assert [figure.last_training_step for figure in figures] == [0, 2, 4, 6], figures
    assert exporter.exports == [(step, step == 6, "export") for step in (0, 2, 4, 6)]
    assert done.figures.nb_eval_steps == 8
    np.testing.assert_allclose(done.metrics["loss"], np.mean((X @ kernel - Y) ** 2), rtol=1e-4)
print("ok evaluated", flush=True)

# Where TensorFlow has no file system: the same, and only whole checkpoints are there at any time.
url = f"file://{model_dir}/elsewhere"
experiment(4, directory=url).train()
experiment(6, directory=url).train()
if rank == 0:
    one = experiment(6, directory=url)
    evaluated: list = []
    run_estimator_evaluator(*vars(one).values(), poll_interval=0.05, on_figures=evaluated.append)
    assert [figure.last_training_step for figure in evaluated] == [0, 2, 4, 6], evaluated
    assert one.eval_spec.exporters[0].exports[-1] == (6, True, "export")
    moved = {str(path.relative_to(model_dir / "elsewhere")) for path in (model_dir / "elsewhere").rglob("*")}
    assert {"checkpoint", "eval/evaluator.json", "training_ended.json", "model.ckpt-6.index"} <= moved
    assert any(name.startswith("eval/events") for name in moved)
    assert tf.train.latest_checkpoint(str(model_dir / "elsewhere")).endswith("model.ckpt-6")
    found = tf.train.load_checkpoint(str(model_dir / "elsewhere")).get_tensor("kernel")
    np.testing.assert_allclose(found, kernel, rtol=1e-5, atol=1e-6)
print("ok elsewhere", flush=True)

for one, text in (
    (experiment(2, False, model_dir / "plain"), "DistributedOptimizer"),
    (experiment(2 + rank, True, model_dir / "other"), "max_steps differs from rank to rank: [2, 3]"),
):
    try:
        train_and_evaluate(one.estimator, one.train_spec, one.eval_spec)
    except InvalidArgumentError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")
print("ok refused", flush=True)

# A monitored session would take the others' error for a preemption and make a new session, again and again.
fails = True
experiment(100, directory=model_dir / "fails").train()
