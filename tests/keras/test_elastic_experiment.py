"""A KerasExperiment whose workers may be fewer: rank 0 is lost in the second epoch, and the next one goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill, pytest.mark.elastic]
EPOCHS = 3


def experiment(directory: str) -> Any:
    import numpy as np
    import tensorflow as tf

    import tfcollective.keras as tfc

    class Ends(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and str(tfcollective.task()) == "chief:0":
                os.kill(os.getpid(), signal.SIGKILL)

    def model() -> Any:
        made = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        made.compile(tfc.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), loss="mse")
        return made

    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    log = tf.keras.callbacks.CSVLogger(f"{directory}/log.csv")
    return tfc.KerasExperiment(
        model=model,
        model_dir=directory,
        train_params={"epochs": EPOCHS, "batch_size": 10, "callbacks": [Ends(), log]},
        input_data_fn=lambda: x,
        target_data_fn=lambda: x.sum(1),
    )


def test_the_next_rank_0_goes_on_writing(tmp_path: Path) -> None:
    specs = {"chief": TaskSpec(1024, 1), "worker": TaskSpec(1024, 1, instances=2, min_instances=1)}
    results = tfcollective.run(experiment, (str(tmp_path),), task_specs=specs)
    assert len(results) >= 2
    for history in results:
        assert history == results[0]
        assert len(history["loss"]) == EPOCHS
        assert history["loss"][-1] < history["loss"][0]
    files = {one.name for one in tmp_path.iterdir()}
    assert files >= {*(f"checkpoint-{epoch:04d}.weights.h5" for epoch in range(1, EPOCHS + 1)), "model.keras"}
    rows = (tmp_path / "log.csv").read_text().split()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "2"]
