"""A model trained with a distributed optimizer loads where tfcollective is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]
keras = tf.keras

LOADER = """
import json, os, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tfcollective":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import numpy as np, tensorflow as tf
out = {}
for path in sys.argv[1:]:
    model = tf.keras.models.load_model(path)
    kind = type(model.optimizer)
    out[os.path.basename(path)] = [kind.__name__, kind.__module__, int(model.optimizer.iterations),
        model.optimizer.get_config().get("name")]
    model.fit(np.ones((4, 3), "f"), np.ones((4, 1), "f"), verbose=0)
print(json.dumps(out))
"""


def trained(optimizer: object) -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile(tfk.DistributedOptimizer(optimizer), "mse")
    made.fit(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), batch_size=2, verbose=0)
    return made


def test_saved_models_load_in_a_process_without_tfcollective(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.keras" for name in ("Adam", "SGD", "AdamW")]
    with fake_world():
        for path in paths:
            trained(getattr(keras.optimizers, path.stem)()).save(path)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, *map(str, paths)], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for path in paths:
        kind, module, iterations, _name = found[path.name]
        assert kind == path.stem
        assert "tfcollective" not in module
        assert iterations == 2


def test_load_model_brings_the_optimizer_back_distributed(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with fake_world() as ops:
        made = trained(keras.optimizers.Adam())
        made.save(path)
        loaded = tfk.load_model(path)
        assert int(loaded.optimizer.iterations) == 2
        for mine, theirs in zip(loaded.optimizer.variables, made.optimizer.variables, strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(mine), tf.convert_to_tensor(theirs))
        ops.ran.clear()
        loaded.fit(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), verbose=0)
    assert ops.count("start keras_optimizer") == 1
