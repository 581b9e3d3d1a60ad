"""Predicts the quality of wines with an Estimator (TensorFlow 2.15): three processes train, with an evaluator and a
TensorBoard.

python estimator_wine.py
"""

import argparse
from pathlib import Path

import numpy as np

import tfcollective
from tfcollective import TaskSpec, files

GLOBAL_BATCH = 96
STEPS_PER_EPOCH = 5197 // GLOBAL_BATCH
HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(HERE), help="where winequality-red.csv and winequality-white.csv are")
    parser.add_argument("--model-dir", default="models/estimator_wine", help="where everything is written; a URL, too")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="how many train beside the chief")
    parser.add_argument("--linger", type=float, default=30, help="how many seconds TensorBoard stays afterwards")
    parser.add_argument("--max-restarts", type=int, default=0, help="how often to start again when a process dies")
    parser.add_argument("--launcher", default="local", help="where: local, or yarn")
    parser.add_argument("--python", help="yarn: an interpreter that every node has; else this environment is packed")
    return parser.parse_args()


def load_wines(folder: str):
    """Returns (training inputs, marks), (held-out inputs, marks); every fifth wine is held out. Inputs are scaled."""
    tables = []
    for white, name in enumerate(("winequality-red.csv", "winequality-white.csv")):
        path = files.local_path(f"{folder}/{name}")  # a copy, if the folder is hdfs://... or s3://...
        table = np.loadtxt(path, delimiter=";", skiprows=1, dtype=np.float32)
        tables.append(np.hstack([np.full((len(table), 1), white, np.float32), table]))
    wines = np.random.default_rng(0).permutation(np.vstack(tables))  # the same order on every rank
    inputs, marks = wines[:, :-1], wines[:, -1:]
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    held_out = np.arange(len(wines)) % 5 == 0
    return (inputs[~held_out], marks[~held_out]), (inputs[held_out], marks[held_out])


def model_fn(features, labels, mode):
    import tensorflow as tf

    import tfcollective.tensorflow as tfc

    v1 = tf.compat.v1
    # tf_random_seed has no effect on layers.
    first, second = (v1.glorot_uniform_initializer(seed) for seed in (1, 2))
    hidden = v1.layers.dense(features["measurements"], 32, tf.nn.relu, kernel_initializer=first)
    predictions = v1.layers.dense(hidden, 1, kernel_initializer=second)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"mark": predictions})
    loss = v1.losses.mean_squared_error(labels, predictions)
    optimizer = tfc.DistributedOptimizer(v1.train.AdamOptimizer(0.01))  # averages the gradients
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
        eval_metric_ops={"mae": v1.metrics.mean_absolute_error(labels, predictions)},
    )


def make_experiment(folder: str, model_dir: str, epochs: int):
    """Called in every process but TensorBoard's: by the ranks, which train, and by the evaluator."""
    import tensorflow as tf

    import tfcollective.tensorflow as tfc
    from tfcollective.estimator import Experiment

    tfc.init()  # before the RunConfig is made
    training, held_out = load_wines(folder)

    def dataset(wines):
        inputs, marks = wines
        return tf.data.Dataset.from_tensor_slices(({"measurements": inputs}, marks))

    def training_data():
        data = tfc.shard(dataset(training)).shuffle(10000, seed=1)  # this rank's part
        return data.repeat().batch(GLOBAL_BATCH // tfc.size())

    def serving_input():
        measurements = tf.compat.v1.placeholder(tf.float32, [None, training[0].shape[1]])
        return tf.estimator.export.ServingInputReceiver({"measurements": measurements}, {"measurements": measurements})

    config = tf.estimator.RunConfig(
        model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=2 * STEPS_PER_EPOCH,
        log_step_count_steps=STEPS_PER_EPOCH,
    )
    return Experiment(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(training_data, max_steps=epochs * STEPS_PER_EPOCH),
        tf.estimator.EvalSpec(
            lambda: dataset(held_out).batch(256),
            steps=None,
            exporters=[tf.estimator.FinalExporter("wine", serving_input)],
        ),
    )


def absolute(place: str) -> str:
    """Every process has a working directory of its own."""
    return place if files.is_url(place) else str(Path(place).absolute())


def main() -> None:
    arguments = parse_arguments()
    model_dir = absolute(arguments.model_dir)
    task_specs = {
        "chief": TaskSpec("1 GiB", 1),
        "worker": TaskSpec("1 GiB", 1, instances=arguments.workers),
        "evaluator": TaskSpec("1 GiB", 1),
        "tensorboard": TaskSpec("900 MiB", 1, tb_termination_timeout_seconds=arguments.linger),
    }
    data, platform = absolute(arguments.data), {}
    if arguments.launcher == "yarn":
        platform = {"python": arguments.python}
        if not files.is_url(data):  # the job sends the tables along; the model directory has to be visible to all tasks
            platform["files"] = {path.name: str(path) for path in Path(data).glob("*.csv")}
            data = "."
    results = tfcollective.run(
        make_experiment,
        (data, model_dir, arguments.epochs),
        launcher=arguments.launcher,
        task_specs=task_specs,
        platform=platform,
        max_restarts=arguments.max_restarts,
    )
    print(f"trained {results[0].global_step} steps")
    found = results.auxiliary_tasks["evaluator:0"]
    print(f"the evaluator's last word, on {found['checkpoint']}: {found['metrics']}")
    print(f"model exported to {model_dir}/export/wine")


if __name__ == "__main__":
    main()
