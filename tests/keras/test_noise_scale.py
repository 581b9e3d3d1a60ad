"""The gradient noise scale is the one that a problem has."""

from __future__ import annotations

from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world
from jobs import run_job

import tfcollective.keras as tfk
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess]


def test_a_known_noise_scale_is_found() -> None:
    run_job(Path(__file__).with_name("job_noise_scale.py"), 2)


def test_one_rank_has_no_noise_scale() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    with fake_world(size=1):
        model.compile(tfk.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
        history = model.fit(tf.ones([4, 1]), tf.ones([4, 1]), verbose=0, callbacks=[tfk.GradientNoiseScale(4)]).history
    assert list(history) == ["loss"]


def test_what_has_no_norms_to_compare_is_refused() -> None:
    rounded = tfk.DistributedOptimizer("sgd", compression=tfk.Compression.fp16)
    for optimizer, kind, text in (
        ("sgd", InvalidArgumentError, "no DistributedOptimizer"),
        (rounded, UnsupportedError, "not with compression"),
    ):
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        callback = tfk.GradientNoiseScale(4)
        callback.set_model(model)
        with fake_world(), pytest.raises(kind, match=text):
            callback.on_train_begin()
    with pytest.raises(InvalidArgumentError, match="above 0"):
        tfk.GradientNoiseScale(0)
