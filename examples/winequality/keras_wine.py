"""Predicts the quality of wines with Keras: three processes train, with an evaluator and a TensorBoard.

python keras_wine.py
"""

import argparse
from pathlib import Path

import numpy as np

import tfcollective
from tfcollective import TaskSpec, files

GLOBAL_BATCH = 96
HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(HERE), help="where winequality-red.csv and winequality-white.csv are")
    parser.add_argument("--model-dir", default="models/keras_wine", help="where everything is written; a URL, too")
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


def make_experiment(folder: str, model_dir: str, epochs: int):
    """Called in every process but TensorBoard's: by the ranks, which train, and by the evaluator."""
    import tensorflow as tf

    import tfcollective.keras as tfc

    tfc.init()
    training, held_out = load_wines(folder)

    def make_model():
        tf.keras.utils.set_random_seed(1)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Input((training[0].shape[1],)), layers.Dense(32, activation="relu"), layers.Dense(1)]
        )
        model.compile(tfc.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), loss="mse", metrics=["mae"])
        return model

    def training_data():
        data = tfc.shard(tf.data.Dataset.from_tensor_slices(training))  # this rank's part
        return data.shuffle(10000, seed=1).batch(GLOBAL_BATCH // tfc.size())

    def held_out_data():
        return tfc.shard(tf.data.Dataset.from_tensor_slices(held_out)).batch(256)  # the evaluator sees all of it

    return tfc.KerasExperiment(
        model=make_model,
        model_dir=model_dir,
        train_params={"epochs": epochs, "callbacks": [tf.keras.callbacks.TensorBoard(f"{model_dir}/train")]},
        input_data_fn=training_data,
        validation_data_fn=held_out_data,
        evaluator_params={"best_metric": "loss"},
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
    print(f"training ended with a loss of {results[0]['loss'][-1]:.4f}")
    found = results.auxiliary_tasks["evaluator:0"]
    print(f"the evaluator's last word, on {found['checkpoint']}: {found['metrics']}")
    print(f"model saved to {model_dir}/model.keras")


if __name__ == "__main__":
    main()
