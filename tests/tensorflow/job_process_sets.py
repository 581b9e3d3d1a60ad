"""Every collective over process sets, eagerly, in functions and in graphs. Runs on 3 ranks."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfcollective.horovod.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError

outer = tfc.ProcessSet([2, 0])
tfc.init(process_sets=[outer])
rank, size = tfc.rank(), tfc.size()
MINE = tf.constant([rank + 1.0, 2.0 * rank])


def equal(got: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def refused(call: object, text: str) -> None:
    try:
        call()
    except (InvalidArgumentError, tf.errors.InvalidArgumentError) as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


def members_communicate_and_others_are_refused() -> None:
    assert (outer.process_set_id, outer.ranks, outer.size()) == (1, [0, 2], 2)
    assert tfc.process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2]}
    if rank == 1:
        refused(lambda: tfc.allreduce(MINE, process_set=outer), "rank 1 is not one of its ranks 0, 2")
        return
    for function in (lambda call: call(), lambda call: tf.function(call)()):
        equal(function(lambda: tfc.allreduce(MINE, process_set=outer)), [2.0, 2.0])
        equal(function(lambda: tfc.grouped_allreduce([MINE], op=tfc.Sum, process_set=outer)[0]), [4.0, 4.0])
        equal(function(lambda: tfc.allgather(MINE, process_set=outer)), [1.0, 0.0, 3.0, 4.0])
        equal(function(lambda: tfc.grouped_allgather([MINE], process_set=outer)[0]), [1.0, 0.0, 3.0, 4.0])
        equal(function(lambda: tfc.broadcast(MINE, root_rank=2, process_set=outer)), [3.0, 4.0])
        equal(function(lambda: tfc.reducescatter(MINE, op=tfc.Sum, process_set=outer)), [4.0])
        equal(function(lambda: tfc.grouped_reducescatter([MINE], process_set=outer)[0]), [2.0])
        equal(function(lambda: tfc.alltoall(MINE, process_set=outer)), [1.0, 3.0] if rank == 0 else [0.0, 4.0])
        assert function(lambda: tfc.size_op(outer.process_set_id)) == 2
    tfc.barrier(process_set=outer)
    assert tfc.broadcast_object(rank, root_rank=2, process_set=outer) == 2
    assert tfc.allgather_object(rank, process_set=outer) == [0, 2]
    refused(
        lambda: tfc.broadcast(MINE, root_rank=1, process_set=outer), "root_rank: expected one of the ranks 0, 2, got 1"
    )


def other_names_are_not_disturbed() -> None:
    """A rank outside the set has called fewer operations: the world's names must not depend on it."""

    @tf.function
    def step() -> tf.Tensor:
        if outer.included():
            tfc.allreduce(MINE, process_set=outer)
        return tfc.allreduce(MINE, op=tfc.Sum)

    equal(step(), [6.0, 6.0])
    equal(tfc.allreduce(MINE, op=tfc.Sum), [6.0, 6.0])


def gradients_and_variables() -> None:
    variable = tf.Variable([float(rank)])
    for _ in range(2):
        with tfc.DistributedGradientTape(tf.GradientTape(), process_set=outer) as tape:
            loss = tf.reduce_sum(variable * (rank + 1.0))
        equal(tape.gradient(loss, variable), [2.0])  # rank 1's own is 2, too
    if rank == 1:
        return
    x = tf.constant(MINE)
    for call, expected in [
        (lambda: tfc.allreduce(x, op=tfc.Sum, process_set=outer) * (rank + 1.0), [4.0, 4.0]),
        (lambda: tfc.allgather(x, process_set=outer) * (rank + 1.0), [2.0, 2.0]),
        (
            lambda: tfc.broadcast(x, root_rank=2, process_set=outer) * (rank + 1.0),
            [2.0, 2.0] if rank == 2 else [0.0, 0.0],
        ),
        (lambda: tfc.reducescatter(x, op=tfc.Sum, process_set=outer) * (rank + 1.0), [2.0, 6.0]),
    ]:
        with tf.GradientTape() as plain:
            plain.watch(x)
            y = tf.reduce_sum(call())
        equal(plain.gradient(y, x), expected)
    tfc.broadcast_variables([variable], root_rank=2, process_set=outer)
    equal(variable, [2.0])


def in_a_v1_graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([float(rank)]))
        with tf.name_scope(f"part_{rank}"):
            total = tfc.allreduce(variable, op=tfc.Sum, ignore_name_scope=True)
        pair = tfc.allreduce(variable, op=tfc.Sum, process_set=outer) if outer.included() else None
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(total)[0] == 3.0
        assert pair is None or session.run(pair)[0] == 2.0
    hook = tfc.BroadcastGlobalVariablesHook(2)
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant(float(rank)))
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable) == 2.0


def sets_come_and_go() -> None:
    inner = tfc.add_process_set([0, 1])
    assert inner.process_set_id == 2

    @tf.function
    def step() -> tf.Tensor:
        return tfc.allreduce(MINE, process_set=inner)

    if inner.included():
        equal(step(), [1.5, 1.0])
    assert tfc.remove_process_set(inner)
    if rank < 2:
        refused(step, "no process set with the number 2")
    refused(lambda: tfc.allreduce(MINE, process_set=inner), "not registered")
    refused(lambda: tfc.add_process_set([rank]), "all ranks must add and remove the same")
    assert tfc.process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2]}


def after_another_init() -> None:
    tfc.shutdown()
    assert outer.size() is None
    tfc.init(process_sets="dynamic")
    tfc.add_process_set(outer)
    if outer.included():
        equal(tfc.allreduce(MINE, process_set=outer), [2.0, 2.0])


for check in (
    members_communicate_and_others_are_refused,
    other_names_are_not_disturbed,
    gradients_and_variables,
    in_a_v1_graph,
    sets_come_and_go,
    after_another_init,
):
    check()
    print("ok", check.__name__, flush=True)
