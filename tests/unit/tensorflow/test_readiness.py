"""The order in which gradients become ready."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective.tensorflow._readiness import ready_order

pytestmark = pytest.mark.tensorflow


def chain(x: Any, variables: list[Any]) -> Any:
    for variable in variables:
        x = tf.tanh(x * variable)
    return tf.reduce_sum(x)


def learned(loss: Any, variables: list[Any], after: Any = lambda gradients: gradients) -> list[int]:
    """The order that a traced step has."""
    orders: list[list[int]] = []

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        gradients = after(tape.gradient(value, variables))
        orders.append(ready_order(gradients))
        return value

    step()
    return orders[-1]


def test_layers_are_ready_last_to_first() -> None:
    v = [tf.Variable(float(i + 1)) for i in range(5)]
    assert learned(lambda: chain(tf.constant(1.0), v), v) == [4, 3, 2, 1, 0]


def test_variables_are_ready_as_they_are_used() -> None:
    v = [tf.Variable(float(i + 1)) for i in range(5)]
    used = [v[2], v[0], v[4], v[1], v[3]]
    assert learned(lambda: chain(tf.constant(1.0), used), v) == [3, 1, 4, 0, 2]


def test_a_short_branch_is_ready_first() -> None:
    v = [tf.Variable(float(i + 1)) for i in range(6)]
    order = learned(lambda: chain(tf.constant(1.0), v[2:]) + chain(tf.constant(1.0), v[:2]), v)
    assert order.index(1) < order.index(4)
    assert order.index(0) < order.index(3)


def test_scaling_all_gradients_keeps_the_order() -> None:
    v = [tf.Variable(float(i + 1)) for i in range(4)]
    scaled = learned(lambda: chain(tf.constant(1.0), v), v, lambda gradients: [g * 0.5 for g in gradients])
    assert scaled == [3, 2, 1, 0]


def test_clipping_by_global_norm_keeps_the_order() -> None:
    v = [tf.Variable(float(i + 1)) for i in range(4)]
    order = learned(lambda: chain(tf.constant(1.0), v), v, lambda g: tf.clip_by_global_norm(g, 1.0)[0])
    assert order == [3, 2, 1, 0]


def test_sparse_gradients_have_their_place() -> None:
    v = [tf.Variable(2.0), tf.Variable(tf.ones([4, 2])), tf.Variable(2.0)]
    order = learned(lambda: chain(tf.gather(v[1], [0, 2]), [v[0], v[2]]), v)
    assert order.index(2) < order.index(1)


def test_unknown_batch_sizes_keep_the_order() -> None:
    """Unknown sizes are computed in the step, by ops that make some chains longer and others not."""
    layers = tf.keras.layers
    inputs = layers.Input((4, 8))
    once = layers.Dense(16, activation="relu")(inputs)
    joined = layers.Add()([layers.Dense(8)(once), inputs])
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.LayerNormalization()(joined))))
    orders = []

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        orders.append(ready_order(tape.gradient(loss, model.trainable_variables)))

    for rows in (32, None):
        tf.function(step).get_concrete_function(tf.TensorSpec([rows, 4, 8]))
    assert orders[0] == orders[1]


def test_outside_of_a_graph_it_is_the_reverse() -> None:
    assert ready_order([tf.constant(1.0), tf.constant(2.0), tf.constant(3.0)]) == [2, 1, 0]


def test_a_constant_gradient_has_no_order() -> None:
    outside, v = tf.constant(1.0), tf.Variable(2.0)
    assert learned(lambda: chain(tf.constant(1.0), [v]), [v, v], lambda g: [g[0], outside]) == [1, 0]


def test_a_loop_of_v1_graphs_is_followed() -> None:
    with tf.Graph().as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            v = tf.compat.v1.get_variable("v", initializer=1.5)
            w = tf.compat.v1.get_variable("w", initializer=1.5)
            looped = tf.compat.v1.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * v), [0, w * 1.0])[1]
            assert sorted(ready_order(tf.compat.v1.gradients(looped, [v, w]))) == [0, 1]
        finally:
            tf.compat.v1.enable_control_flow_v2()
