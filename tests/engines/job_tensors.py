"""What holds for tensors on every engine: eagerly, in a function, in a v1 graph, and in training."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

import tfcollective.horovod.tensorflow as hvd

hvd.init(engine=os.environ["EXPECTED_ENGINE"])
rank, size = hvd.rank(), hvd.size()
assert size == int(os.environ["EXPECTED_SIZE"])
ENGINE = os.environ["EXPECTED_ENGINE"]
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16]


def equal(got: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(tf.cast(got, tf.float64)), np.asarray(expected, np.float64))


def mine() -> tf.Tensor:
    return tf.range(5, dtype=tf.float32) + float(rank)


def total() -> np.ndarray:
    return size * np.arange(5) + sum(range(size))


def types() -> None:
    for dtype in DTYPES:
        equal(hvd.allreduce(tf.cast(mine(), dtype), op=hvd.Sum), total())
        equal(hvd.broadcast(tf.cast(mine(), dtype), root_rank=1), np.arange(5) + 1)
        equal(hvd.allgather(tf.cast([[rank]], dtype)), np.arange(size)[:, None])
    equal(hvd.allreduce(mine(), op=hvd.Max), np.arange(5) + size - 1)
    equal(hvd.allreduce(mine()), total() / size)
    equal(hvd.allreduce(tf.constant([-1 - rank])), [int(-sum(range(1, size + 1)) / size)])
    equal(hvd.allreduce(mine(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * total())


def collectives() -> None:
    equal(hvd.allgather(tf.fill([rank, 2], rank)), np.concatenate([np.full((r, 2), r) for r in range(size)]))
    equal(hvd.alltoall(tf.fill([size], rank)), np.arange(size))
    got, received = hvd.alltoall(tf.fill([sum(range(size))], rank), splits=list(range(size)))
    equal(got, np.repeat(np.arange(size), rank))
    equal(received, [rank] * size)
    rows = tf.reshape(tf.range(2 * size + 1), [-1, 1]) + rank
    whole = sum(np.arange(2 * size + 1)[:, None] + other for other in range(size))
    equal(hvd.reducescatter(rows, op=hvd.Sum), np.array_split(whole, size)[rank])
    one, two = hvd.grouped_allreduce([mine(), tf.constant([[1.0]])], op=hvd.Sum)
    equal(one, total())
    equal(two, [[size]])
    slices = tf.IndexedSlices(tf.fill([1, 2], float(rank)), tf.constant([rank]), tf.constant([size, 2]))
    equal(tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum)), np.arange(size)[:, None] * np.ones(2))
    assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
    assert hvd.broadcast_object(rank, root_rank=1) == 1
    hvd.barrier()


def function() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for _ in tf.range(2):
            x = hvd.allreduce(x, op=hvd.Sum)
        return x, hvd.broadcast(x, root_rank=0)

    for _ in range(2):
        summed, sent = step(mine())
        equal(summed, total() * size)
        equal(sent, total() * size)


def graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.constant([float(rank + 1)])
        results = [hvd.allreduce(value, op=hvd.Sum, name="a"), hvd.allreduce(2 * value, op=hvd.Sum, name="b")]
        one, two = session.run(results)
    np.testing.assert_array_equal(one, [sum(range(1, size + 1))])
    np.testing.assert_array_equal(two, [2 * sum(range(1, size + 1))])


def gradients() -> None:
    x = tf.Variable([float(rank), 1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) * [1.0, 2.0]) * (rank + 1.0)
    factor = sum(range(1, size + 1))
    equal(tape.gradient(loss, x), [factor, 2 * factor])


def training() -> None:
    tf.random.set_seed(rank)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
    x = np.random.default_rng(rank).normal(size=(64, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
    optimizer = tf.keras.optimizers.SGD(0.1)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for _ in range(60):
        step()
    everywhere = hvd.allgather(tf.reshape(model.get_weights()[0], [1, 3]))
    equal(everywhere, np.repeat(everywhere[:1], size, axis=0))
    np.testing.assert_allclose(everywhere[0], [1, 2, 3], atol=0.1)


def process_sets() -> None:
    some = hvd.add_process_set([1, 2])
    if not some.included():
        return
    two = {"process_set": some}
    equal(hvd.allreduce(mine(), op=hvd.Sum, **two), 2 * np.arange(5) + 3)
    equal(hvd.allreduce(tf.constant([rank, 2 * rank + 1]), **two), [1, 4])
    equal(hvd.allgather(tf.fill([rank], rank), **two), [1, 2, 2])
    equal(hvd.broadcast(tf.constant(rank), root_rank=2, **two), 2)
    equal(hvd.alltoall(tf.constant([rank, 10 * rank]), **two), [[1, 2], [10, 20]][rank - 1])
    equal(hvd.reducescatter(tf.constant([1, 2, 3]), op=hvd.Sum, **two), [[2, 4], [6]][rank - 1])
    one, two_ = tf.function(lambda: hvd.grouped_allreduce([mine(), 2 * mine()], op=hvd.Sum, **two))()
    equal(two_, 2 * one)
    x = tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape(), **two) as tape:
        loss = tf.reduce_sum(x * float(rank))
    equal(tape.gradient(loss, [x])[0], [1.5])


def what_is_built() -> None:
    assert (hvd.mpi_enabled(), hvd.gloo_enabled()) == (ENGINE == "mpi", ENGINE == "horovod")
    assert (hvd.mpi_built(), hvd.gloo_built()) == (ENGINE == "mpi", ENGINE == "horovod")


def disagreement() -> None:
    try:
        hvd.allreduce(tf.ones(2 if rank == 0 else 3), name="uneven")  # two kinds: Horovod names no third
        raise AssertionError("no error")
    except (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError) as error:
        assert "2" in str(error)
        assert "3" in str(error)


CHECKS = [types, collectives, function, graph, gradients, training, process_sets, what_is_built, disagreement]
for check in CHECKS:
    check()
    os.write(1, f"ok {check.__name__}\n".encode())  # at once: several ranks share one pipe
hvd.shutdown()
