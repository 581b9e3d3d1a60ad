"""What experiments refuse; job_training.py trains one."""

from __future__ import annotations

from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

from tfcollective.errors import ConfigError, UnsupportedError
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
