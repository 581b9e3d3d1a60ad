"""Trains a model with all callbacks that communicate, and saves what came out.

Usage: job_process_sets.py FOLDER both|pair|single. With "both", on 3 ranks, ranks 0 and 2 train one model and rank 1
another, side by side; else all ranks of the job train the one that is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk
from tfcollective._base.errors import ConfigError

folder, which = Path(sys.argv[1]), sys.argv[2]
pair, single = tfk.ProcessSet([2, 0]), tfk.ProcessSet([1])
tfk.init(process_sets=[pair, single] if which == "both" else [])
keras = tf.keras
SETS = {"pair": pair, "single": single}
name = which if which != "both" else next(one for one in SETS if SETS[one].included())
mine = SETS[name] if which == "both" else None
place, count = (tfk.rank(), tfk.size()) if mine is None else (mine.rank(), mine.size())
first = 0 if mine is None else mine.ranks[0]
BATCH, EPOCHS = 4, 3


def data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the data of its model."""
    rng = np.random.default_rng([seed, len(name)])
    x = rng.normal(size=(rows, 3)).astype(np.float32) + 1.0
    return x[place::count], (x.sum(axis=1, keepdims=True) > 3.0).astype(np.float32)[place::count]


def make_model() -> object:
    keras.utils.set_random_seed(100 + place)  # ranks start with different weights
    model = keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="tanh"),
            tfk.SyncBatchNormalization(process_set=mine),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=0.5), process_set=mine)
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def callbacks(out: Path) -> list:
    return [
        tfk.BroadcastGlobalVariablesCallback(first, process_set=mine),
        tfk.MetricAverageCallback(process_set=mine),
        tfk.LearningRateWarmupCallback(0.2, warmup_epochs=2, process_set=mine),
        tfk.BestModelCheckpoint(save_weights_only=True, filepath=str(out / "best.weights.h5"), process_set=mine),
        tfk.BackupAndRestore(str(out / "own"), delete_checkpoint=False, process_set=mine),
    ]


(folder / name).mkdir(parents=True, exist_ok=True)
x, y = data(48, 1)
trained = make_model()
fitted = trained.fit(
    x, y, BATCH, EPOCHS, shuffle=False, verbose=0, validation_data=data(12, 2), callbacks=callbacks(folder / name)
)
experiment = tfk.KerasExperiment(
    make_model,
    str(folder / f"{name}.experiment"),
    {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0},
    input_data_fn=lambda: x,
    target_data_fn=lambda: y,
    process_set=mine,
)
history = experiment.train()
again = make_model()  # resumes where the first one has ended: it trains no more
again.fit(
    x, y, BATCH, EPOCHS, verbose=0, callbacks=[tfk.BackupAndRestore(str(folder / name / "own"), process_set=mine)]
)
if place == 0:
    weights = {f"weight {i}": tf.convert_to_tensor(w).numpy() for i, w in enumerate(trained.weights)}
    restored = {f"restored {i}": tf.convert_to_tensor(w).numpy() for i, w in enumerate(again.weights)}
    logs = {f"fit {key}": values for key, values in fitted.history.items()}
    logs |= {f"experiment {key}": values for key, values in history.items()}
    assert (folder / name / "best.weights.h5").exists()
    np.savez(folder / f"{which}.{name}.npz", **weights, **restored, **logs)
if mine is not None:
    try:
        tfk.KerasExperiment(make_model, str(folder / "refused")).train()
    except ConfigError as error:
        assert "another process_set than the experiment" in str(error), error
    else:
        raise AssertionError("no error")
copied = tfk.SyncBatchNormalization.from_config(tfk.SyncBatchNormalization(process_set=mine).get_config())
copied(tf.constant(x), training=True)  # over the same ranks
tfk.shutdown()
