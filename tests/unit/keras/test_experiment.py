"""What experiments refuse; job_training.py trains one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective
from tfcollective import files
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective.keras import DistributedOptimizer, KerasExperiment

pytestmark = pytest.mark.tensorflow


def model(optimizer: object = None) -> object:
    made = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    if optimizer is not None:
        made.compile(optimizer, "mse")
    return made


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    plain, distributed = model("sgd"), model(DistributedOptimizer(tf.keras.optimizers.SGD()))
    backup = tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    cases = [
        (KerasExperiment(model(), ""), ConfigError, "it is not compiled"),
        (KerasExperiment(lambda: None, ""), ConfigError, "it is not compiled"),
        (KerasExperiment(lambda: plain, ""), ConfigError, "DistributedOptimizer"),
        (KerasExperiment(distributed, "", {"x": [1]}), ConfigError, "train_params: x comes from input_data_fn"),
        (KerasExperiment(distributed, "", {"callbacks": [backup]}), UnsupportedError, "BackupAndRestore"),
    ]
    with fake_world(size=2):
        for experiment, kind, message in cases:
            with pytest.raises(kind, match=message):
                experiment.train()
    assert not (tmp_path / "backup").exists()


def test_a_remote_experiment_moves_whole_files(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url, inputs = f"memory://experiment-{tmp_path.name}", np.arange(8, dtype=np.float32).reshape(8, 1)
    log = tf.keras.callbacks.CSVLogger(f"{url}/logs/log.csv")
    board = tf.keras.callbacks.TensorBoard(f"{url}/board")
    seen: list[list[str]] = []
    look = tf.keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(sorted(n for n in files.list_files(url)))
    )
    whole = KerasExperiment(
        lambda: model("sgd"),
        url + "/",
        {"epochs": 2, "verbose": 0, "callbacks": [log, board, look]},
        lambda: inputs,
        lambda: 2 * inputs,
        lambda: (inputs, 2 * inputs),
        {"idle_timeout": 4.0, "poll_interval": 0.1, "best_metric": "loss"},
    )
    tfcollective.init()
    try:
        assert len(whole.train()["loss"]) == 2
        evaluated = whole.evaluate()
    finally:
        tfcollective.shutdown()
    assert seen == [[], ["checkpoint-0001.weights.h5"]]
    found = set(files.find_files(url))
    assert {"checkpoint-0002.weights.h5", "model.keras", "logs/log.csv", "eval/evaluator.json"} <= found
    assert any(name.startswith("board/train/events.") for name in found)
    assert any(name.startswith("eval/events.") for name in found)
    assert (log.filename, board.log_dir) == (f"{url}/logs/log.csv", f"{url}/board")
    assert evaluated.evaluated == 2
    assert evaluated.best is not None
    with files.local_copy(evaluated.best.path) as path:
        assert path.stat().st_size > 0
