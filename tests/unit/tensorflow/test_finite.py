"""NaN: the rank, the step and the variable with which it begins."""

from __future__ import annotations

import logging
import math

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc

pytestmark = pytest.mark.tensorflow
keras = tf.keras


def warnings(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def train(kind: str, traced: bool, bad_step: int | None, steps: int = 4) -> None:
    """Steps of two variables, in one of which the gradient of the second is NaN."""
    first, second = tf.Variable([1.0], name="first"), tf.Variable([1.0, 2.0], name=f"second_{traced}")
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def step(scale: tf.Tensor) -> None:
        if kind == "optimizer":
            optimizer.apply_gradients([(tf.ones([1]), first), (tf.stack([1.0, scale]), second)])
            return
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first) + scale * tf.reduce_sum(second)
        gradients = tfc.DistributedGradientTape(tape).gradient(loss, [first, second])
        second.assign_sub(gradients[1])

    run = tf.function(step) if traced else step
    for number in range(steps):
        run(tf.constant(math.nan if number == bad_step else 1.0))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", ["optimizer", "tape"])
def test_rank_step_and_variable_are_named_once(kind: str, traced: bool, caplog: pytest.LogCaptureFixture) -> None:
    with fake_world(rank=1, nan_check=True, replica_check_steps=0), caplog.at_level(logging.WARNING, "tfcollective"):
        train(kind, traced, bad_step=1)
    (line,) = warnings(caplog, "begins on")
    assert line.startswith("NaN or infinity begins on rank 1 in step 2: in the gradient of second"), line
    assert "1 of 2 variables" in line


def test_it_is_an_option(caplog: pytest.LogCaptureFixture) -> None:
    with fake_world(replica_check_steps=0), caplog.at_level(logging.WARNING, "tfcollective"):
        train("optimizer", False, bad_step=1)
    assert warnings(caplog, "NaN") == []


def test_without_it_the_replica_check_says_since_when(caplog: pytest.LogCaptureFixture) -> None:
    with fake_world(), caplog.at_level(logging.WARNING, "tfcollective"):
        train("optimizer", False, bad_step=3, steps=10)
    (line,) = warnings(caplog, "the weights hold NaN")
    assert "since a step from 3 to 4" in line
    assert "second" in line
    assert "TFCOLLECTIVE_NAN_CHECK=1" in line
