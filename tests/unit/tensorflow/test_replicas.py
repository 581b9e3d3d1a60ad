"""Replicas that differ: what counts as rounding, and what is done about it."""

from __future__ import annotations

import logging
import math
import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeOps, fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import CollectiveMismatchError, InvalidArgumentError
from tfcollective.tensorflow._guard import fingerprints
from tfcollective.tensorflow._replica_check import rounding_bound
from tfcollective.tensorflow._replicas import relative_difference

pytestmark = pytest.mark.tensorflow
keras = tf.keras

FLOAT32, BFLOAT16 = 2.0**-23, 2.0**-7


def test_the_rounding_bound_grows_to_a_limit() -> None:
    assert rounding_bound(FLOAT32, 4) == 2 * rounding_bound(FLOAT32, 2) < 1e-5
    assert rounding_bound(FLOAT32, 1_000_000) == math.sqrt(FLOAT32) < 1e-3
    assert rounding_bound(BFLOAT16, 1_000_000) < 0.1
    assert rounding_bound(FLOAT32, 0) > 0


@pytest.mark.parametrize(
    ("mine", "reference", "floor", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.0, 0.25),
        ([0.0], [0.0], 0.0, 0.0),
        ([1e-9], [0.0], 0.0, math.inf),  # nothing to compare it with
        ([1e-9], [0.0], 0.1, 1e-8),  # a bias that passes zero has the rounding of the other weights
        ([math.nan, 1.0], [math.nan, 1.0], 0.0, 0.0),
        ([math.nan, 1.0], [0.0, 1.0], 0.0, math.inf),
        ([math.inf], [math.inf], 0.0, 0.0),
        ([math.inf], [-math.inf], 1.0, math.inf),
    ],
)
def test_the_difference_is_relative_to_the_largest_weight(
    mine: list[float], reference: list[float], floor: float, expected: float
) -> None:
    assert relative_difference(np.array(mine), np.array(reference), floor) == pytest.approx(expected)


def test_large_variables_are_compared_to_the_end() -> None:
    mine = np.ones(3_000_000, np.float32)
    mine[-1] = 1.5
    assert relative_difference(mine, np.ones_like(mine)) == 0.5


def third_step(
    fake: FakeOps,
    variables: list[tf.Variable],
    traced: bool,
    theirs: list[tf.Tensor],
    action: int = 0,
    check: tfk.ReplicaCheck | None = None,
) -> None:
    """Two steps, and a third one in which the other rank holds other values."""
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.0), replica_check=check or tfk.ReplicaCheck())

    def step() -> None:
        optimizer.apply_gradients([(tf.zeros(v.shape, v.dtype), v) for v in variables])

    run = tf.function(step) if traced else step
    run()
    run()
    row = np.zeros((1, 8), np.uint8)
    row[0, :3] = 1, 1, action
    fake.rows_of_others = tf.concat([fingerprints(theirs), row], 0)[tf.newaxis]
    run = tf.function(step) if traced else step  # the fake's values are part of a graph
    run()


ROUNDED = np.nextafter(np.float32(0.1), np.float32(1))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.float64])
def test_rounding_is_taken_back(traced: bool, dtype: object, caplog: pytest.LogCaptureFixture) -> None:
    one = np.full(2, 0.1).astype(dtype.as_numpy_dtype)
    mine = np.nextafter(one, one + one)
    variables = [tf.Variable(tf.zeros([2], dtype), name="zeros"), tf.Variable(mine, name="rounded")]
    first = [tf.zeros([2], dtype), tf.constant(one)]
    with fake_world(rank=1) as fake, caplog.at_level(logging.INFO, "tfcollective"):
        fake.weights_of_first = [one]
        third_step(fake, variables, traced, first)
    assert np.array_equal(variables[1].numpy(), first[1].numpy())
    assert fake.count("grouped_allreduce") == 1
    assert not [record for record in caplog.records if "rounding" in record.message]  # the first rank says it


def test_the_first_rank_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    variables = [tf.Variable([0.1, 0.2], name="kernel")]
    with fake_world() as fake, caplog.at_level(logging.INFO, "tfcollective"):
        fake.drifts_of_others = (1e-7, 3.8e-6)
        third_step(fake, variables, False, [tf.constant([ROUNDED, 0.2])])
    (record,) = [record for record in caplog.records if "rounding" in record.message]
    assert record.levelno == logging.WARNING
    assert "in step 3" in record.message
    assert re.search(r"kernel\S* on ranks \[1\], by 1e-07 of the largest", record.message)


@pytest.mark.parametrize("traced", [False, True])
def test_more_than_rounding_changes_no_variable(traced: bool) -> None:
    variables = [tf.Variable([0.1, 0.2], name="kernel"), tf.Variable([0.3], name="bias")]
    error = tf.errors.InvalidArgumentError if traced else CollectiveMismatchError
    with fake_world(rank=1) as fake:
        fake.weights_of_first = [[ROUNDED, 0.2], [0.4]]
        with pytest.raises(error, match=r"weights differ(.|\n)*bias(.|\n)*\[1\], by 0.25 of the largest"):
            third_step(fake, variables, traced, [tf.constant([ROUNDED, 0.2]), tf.constant([0.4])])
    assert variables[0].numpy().tolist() == [np.float32(0.1), np.float32(0.2)]


def test_the_rank_farthest_off_decides_for_all() -> None:
    """This one is first, and equal to itself."""
    variables = [tf.Variable([0.1], name="kernel")]
    with fake_world() as fake:
        fake.drifts_of_others = (1e-2, 1e-6)
        with pytest.raises(CollectiveMismatchError, match=r"kernel.* on ranks \[1\], by 0.01"):
            third_step(fake, variables, False, [tf.constant([0.2])])


def test_integers_are_never_rounded() -> None:
    variables = [tf.Variable([1], name="count"), tf.Variable([0.1], name="kernel")]
    with fake_world(rank=1) as fake, pytest.raises(CollectiveMismatchError, match="count"):
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.0))
        row = np.zeros((1, 8), np.uint8)
        row[0, 1] = 1
        guard = optimizer._tfcollective.guard
        for number in range(3):
            if number == 2:
                theirs = fingerprints([tf.constant([2]), tf.constant([0.1])])
                fake.rows_of_others = tf.concat([theirs, row], 0)[tf.newaxis]
            guard.step(variables)


def test_warn_goes_on_with_other_weights(caplog: pytest.LogCaptureFixture) -> None:
    variables = [tf.Variable([0.1], name="kernel")]
    with fake_world(replica_check="warn") as fake:
        fake.drifts_of_others = (0.5, 1e-6)
        third_step(fake, variables, False, [tf.constant([0.2])], action=1)
    assert "weights differ in step 3: kernel" in caplog.text


def test_without_tolerance_rounding_is_an_error() -> None:
    variables = [tf.Variable([0.1], name="kernel")]
    with fake_world(rank=1) as fake:
        fake.weights_of_first = [[ROUNDED]]
        with pytest.raises(CollectiveMismatchError, match=r"kernel.* on ranks \[1\], by .* \(tolerated: 0\)"):
            third_step(fake, variables, False, [tf.constant([ROUNDED])], check=tfk.ReplicaCheck(tolerance=0))
    assert variables[0].numpy() == np.float32(0.1)


def test_tolerated_differences_are_taken_back() -> None:
    variables = [tf.Variable([0.1], name="kernel")]
    with fake_world(rank=1) as fake:
        fake.weights_of_first = [[0.11]]
        third_step(fake, variables, False, [tf.constant([0.11])], check=tfk.ReplicaCheck(tolerance=0.1))
    assert variables[0].numpy() == np.float32(0.11)


@pytest.mark.parametrize("chosen", [["bias*"], lambda variable: "bias" in variable.name])
def test_only_chosen_variables_are_compared(chosen: object) -> None:
    variables = [tf.Variable([0.1], name="kernel"), tf.Variable([0.3], name="bias")]
    with fake_world(rank=1) as fake:
        fake.weights_of_first = [[0.4]]
        check = tfk.ReplicaCheck(variables=chosen)
        with pytest.raises(CollectiveMismatchError, match=r"bias.* on ranks \[1\], by 0.25 of the largest"):
            third_step(fake, variables, False, [tf.constant([0.4])], check=check)


def test_the_first_ranks_action_is_that_of_all(caplog: pytest.LogCaptureFixture) -> None:
    variables = [tf.Variable([0.1], name="kernel")]
    with fake_world(rank=1) as fake, pytest.raises(CollectiveMismatchError, match="kernel"):
        fake.weights_of_first = [[0.2]]
        third_step(fake, variables, False, [tf.constant([0.2])], 0, tfk.ReplicaCheck(action="warn"))


@pytest.mark.parametrize(
    ("options", "text"),
    [({"action": "stop"}, "error, warn, resync"), ({"tolerance": -1.0}, "0 or more"), ({"variables": "bias"}, "list")],
)
def test_options_without_a_meaning_are_refused(options: dict, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        tfk.ReplicaCheck(**options)
