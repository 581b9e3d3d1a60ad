"""Graphs and sessions of ``tf.compat.v1``, and values that are read when a graph runs."""

from __future__ import annotations

import os

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.horovod.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError, StateError, UnsupportedError

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1


@pytest.mark.parametrize("average", [False, True])
def test_passes_are_added_up(average: bool) -> None:
    with fake_world() as ops, tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=tf.constant([0.0]))
        table = v1.get_variable("t", initializer=tf.zeros([3, 1]))
        x, steps = v1.placeholder(tf.float32, []), v1.train.get_or_create_global_step()
        optimizer = tfc.DistributedOptimizer(
            v1.train.MomentumOptimizer(1.0, 0.0),
            backward_passes_per_step=3,
            average_aggregated_gradients=average,
            op=tfc.Sum,
        )
        loss = tf.reduce_sum(weight * x) + tf.reduce_sum(tf.gather(table, [1])) * x
        train = optimizer.minimize(loss, global_step=steps)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for number in range(6):
            session.run(train, {x: float(number)})
            done = 2.0 * sum(range((number + 1) // 3 * 3)) / (3 if average else 1)
            np.testing.assert_allclose(session.run(weight), [-done], rtol=1e-6)
            np.testing.assert_allclose(session.run(table)[1], [-done], rtol=1e-6)
        assert session.run(steps) == 2
        assert not [v for v in v1.global_variables() if "tfcollective" in v.name]
    assert ops.count("start v1_optimizer") == 2


def test_passes_need_gradients_first() -> None:
    with tf.Graph().as_default():
        optimizer = tfc.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        with pytest.raises(StateError, match="compute_gradients"):
            optimizer.apply_gradients([])
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step"):
        tfc.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=0)


def test_local_variables() -> None:
    with fake_world(), tf.Graph().as_default(), v1.Session() as session:
        local, shared = (v1.get_variable(name, initializer=tf.constant([0.0])) for name in "ab")
        optimizer = tfc.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=tfc.Sum)
        optimizer.register_local_var(local)
        train = optimizer.minimize(tf.reduce_sum(local + shared))
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run([local, shared]) == [[-0.5], [-2.0]]


def test_the_hook_broadcasts_after_the_session_is_made() -> None:
    hook = tfc.BroadcastGlobalVariablesHook(0)
    with fake_world() as ops:
        for _ in range(2):  # one hook may serve several graphs
            with tf.Graph().as_default():
                variable = v1.get_variable("v", initializer=tf.constant(3.0))
                with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                    assert session.run(variable) == 3.0
    assert ops.count("broadcast") == 2


def test_global_variables_need_a_graph() -> None:
    with fake_world(), pytest.raises(StateError, match="broadcast_variables"):
        tfc.broadcast_global_variables(0)


def test_variables_are_given_back() -> None:
    variables = [tf.Variable(1.0), tf.Variable([2])]
    with fake_world() as ops:
        assert tfc.broadcast_(variables, 1, name="mine")[1] is variables[1]
    assert ops.ran == ["broadcast mine/0", "broadcast mine/1"]


def test_ranks_and_sizes_are_read_at_runtime() -> None:
    @tf.function
    def all_of_them() -> list:
        return [tfc.rank_op(), tfc.size_op(), tfc.local_rank_op(), tfc.local_size_op(), tfc.process_set_included_op()]

    for size in (2, 5):
        with fake_world(size=size, rank=1):
            got = all_of_them()
            assert [int(value) for value in got] == [1, size, 1, size, 1]
            assert got[0].dtype == tf.int32
            with pytest.raises(InvalidArgumentError, match="number 9"):
                tfc.size_op(9)


def test_small_questions() -> None:
    assert tfc.check_num_rank_power_of_2(8)
    with pytest.raises(UnsupportedError, match="power of two"):
        tfc.check_num_rank_power_of_2(6)
    assert [tfc.num_rank_is_power_2(n) for n in range(5)] == [False, True, True, False, True]
    assert isinstance(tfc.gpu_available(), bool)
    with fake_world():
        assert tfc.is_homogeneous()
        assert tfc.handle_average_backwards_compatibility(None, None) == tfc.Average
    assert not any(getattr(tfc, name)() for name in dir(tfc) if name.endswith(("_built", "_enabled", "_supported")))


def test_elastic_states_of_sessions_are_refused() -> None:
    with v1.Session(graph=tf.Graph()) as session, pytest.raises(UnsupportedError, match=r"session: .* tf\.function"):
        tfc.elastic.TensorFlowState(session=session)


def test_the_keras_alias() -> None:
    import tfcollective.horovod.keras as home
    import tfcollective.horovod.tensorflow.keras as alias
    from tfcollective.horovod.tensorflow.keras.callbacks import MetricAverageCallback
    from tfcollective.horovod.tensorflow.keras.elastic import KerasState

    assert alias.__all__ == home.__all__
    assert alias.DistributedOptimizer is home.DistributedOptimizer
    assert MetricAverageCallback is home.callbacks.MetricAverageCallback
    assert KerasState is home.elastic.KerasState


def test_an_evaluator_may_build_without_reducing(monkeypatch) -> None:
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"]}, "task": {"type": "evaluator", "index": 0}}',
    )
    tfc.init()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("w", initializer=tf.constant([3.0]))
            table = v1.get_variable("t", initializer=tf.zeros([3, 1]))
            loss = tf.reduce_sum(weight) + tf.reduce_sum(tf.gather(table, [1]))
            train = tfc.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(loss)
            session.run(v1.global_variables_initializer())
            assert session.run(loss) == 3.0
            with pytest.raises(tf.errors.InvalidArgumentError, match="this process is evaluator:0: it is outside"):
                session.run(train)
            assert session.run(weight) == 3.0
    finally:
        tfc.shutdown()
        os.environ.pop("TFCOLLECTIVE_TF_CONFIG", None)  # where init() has put it
