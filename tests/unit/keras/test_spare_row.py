"""Layers get a row where a rank has none, and what they return has none."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.keras3 import call_summing
from tfcollective.keras._parallel.rows import Part
from tfcollective.keras._parallel.spare_row import call_layer
from tfcollective.keras._parallel.step import Step, within

pytestmark = pytest.mark.tensorflow
keras = tf.keras


class Recorded:
    """Called as layers are; keeps the arguments of the last call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.args, self.kwargs = args[1:], kwargs
        return {"first": args[1] * 2, "loss": tf.constant(1.0)}


def empty_step(*spare: Any) -> Step:
    """Of a batch without parts that layers get as they are."""
    return Step(tf.constant(0, tf.int64), tf.constant(2, tf.int64), True, 0, tuple((None, one) for one in spare))


def test_each_argument_gets_the_row_of_its_type() -> None:
    layer, x, ids = Recorded(), tf.zeros((0, 2)), tf.zeros((0,), tf.int64)
    text, some = tf.zeros((0, 3), tf.string), tf.ones((4, 2))
    with within(empty_step(tf.constant([[5.0, 6.0]]), tf.constant([7.0]))):
        results = call_layer(layer, None, x, [ids, text], some=some, training=True)
    assert layer.args[0].numpy().tolist() == [[5.0, 6.0]]
    assert [one.numpy().tolist() for one in layer.args[1]] == [[1], [[b"", b"", b""]]]
    assert layer.kwargs["training"] is True
    assert layer.kwargs["some"] is some
    assert results["first"].shape == (0, 2)
    assert float(results["loss"]) == 1.0


def test_a_part_gets_its_own_row() -> None:
    layer, first, second = Recorded(), tf.zeros((0, 2)), tf.zeros((0, 2))
    step = dataclasses.replace(empty_step(), spare=((first, tf.ones((1, 2))), (second, tf.zeros((1, 2)))))
    with within(step):
        call_layer(layer, None, second, first)
    assert [one.numpy().tolist() for one in layer.args] == [[[0.0, 0.0]], [[1.0, 1.0]]]


def test_sparse_arguments_are_left_alone() -> None:
    layer, x = Recorded(), tf.zeros((0, 2))
    with within(empty_step(tf.constant([[5.0, 6.0]]))):
        call_layer(layer, None, x, tf.sparse.from_dense(x))
    assert layer.args[0] is x


def test_rows_are_left_alone() -> None:
    layer, x = Recorded(), tf.ones((2, 2))
    with within(empty_step(tf.constant([[5.0, 6.0]]))):
        call_layer(layer, None, x)
    assert layer.args[0] is x
    call_layer(layer, None, tf.zeros((0, 2)))
    assert layer.args[0].shape == (0, 2)


def test_masks_follow() -> None:
    layer, x = Recorded(), tf.zeros((0, 2))
    x._keras_mask = tf.zeros((0, 2), tf.bool)
    with within(empty_step(tf.constant([[5.0, 6.0]]))):
        call_layer(layer, None, x)
    assert layer.args[0]._keras_mask.numpy().tolist() == [[True, True]]


def test_who_surely_has_rows_needs_none() -> None:
    full = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    assert all(part.spare == () for part in Division(2, 3).parts_of(full))
    parts = list(Division(2, 3).parts_of(tf.data.Dataset.range(10).batch(4)))
    assert [len(part.batch) for part in parts] == [1, 1, 0]
    assert [part.spare[0].numpy().tolist() for part in parts][-1] == [8]


@pytest.mark.parametrize("eager", [False, True])
def test_a_convolution_of_no_rows_has_zero_gradients(eager: bool) -> None:
    layer = keras.layers.Conv2D(4, 3, strides=2)
    layer.build((None, 8, 8, 3))
    images = tf.random.stateless_uniform((2, 8, 8, 3), (1, 2))
    part = Division(2, 3).part_of(images)

    def step(part: Part) -> Any:
        with within(empty_step(*part.spare)), tf.GradientTape() as tape:
            made = call_layer(type(layer).__call__, layer, part.batch)
            loss = tf.reduce_sum(made)
        return made, tape.gradient(loss, layer.trainable_variables)

    made, gradients = (step if eager else tf.function(step))(part)
    assert made.shape == (0, 3, 3, 4)
    assert not any(np.any(one) for one in gradients)


class Regularized:
    """Adds up its losses as Keras before 3.14 does."""

    activity_regularizer: Any = staticmethod(tf.reduce_sum)

    def __call__(self, x: Any) -> Any:
        return self.activity_regularizer(x)


@pytest.mark.skipif(not hasattr(keras, "distribution"), reason="Keras 2 divides by the rows")
def test_sums_over_rows_become_means_over_ranks() -> None:
    layer, x = Regularized(), tf.constant([[1.0], [2.0]])
    step = Step(tf.constant(2, tf.int64), tf.constant(5, tf.int64), True)
    with within(step):
        assert float(call_summing(type(layer).__call__, layer, x)) == pytest.approx(3.0 * 5 / 2)
    assert float(call_summing(type(layer).__call__, layer, x)) == 3.0
