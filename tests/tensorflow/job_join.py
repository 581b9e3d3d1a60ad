"""Ranks with different amounts of data: every way to all-reduce, in every mode of execution. Any number of ranks."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc

tfc.init()
rank, size = tfc.rank(), tfc.size()


def steps(of: int) -> int:
    return 2 + 3 * ((of + 1) % size)


LONGEST = max(range(size), key=steps)


def there(step: int) -> list[int]:
    return [other for other in range(size) if steps(other) > step]


def mean(step: int) -> float:
    return 60.0 * float(np.mean([other + 1 for other in there(step)]))


def check(value: object, step: int) -> None:
    np.testing.assert_allclose(np.asarray(value), np.full(3, mean(step), np.float32), rtol=1e-6)


def mine() -> tf.Tensor:
    return tf.fill([3], 60.0 * (rank + 1))


def eager() -> None:
    for step in range(steps(rank)):
        check(tfc.allreduce(mine(), name="eager"), step)
    last = tfc.join()
    assert last.dtype == tf.int32
    assert int(last) == LONGEST, (last, LONGEST)
    np.testing.assert_array_equal(tfc.allgather(tf.constant([rank])), np.arange(size))


def function() -> None:
    @tf.function
    def train(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        results = tf.TensorArray(tf.float32, count, element_shape=[3])
        for step in tf.range(count):
            results = results.write(step, tfc.allreduce(mine(), name="traced"))
        return results.stack(), tfc.join()

    for _ in range(2):
        results, last = train(tf.constant(steps(rank)))
        for step, result in enumerate(results):
            check(result, step)
        assert int(last) == LONGEST


def graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        reduced, last = tfc.allreduce(mine(), name="graph"), tfc.join()
        for step in range(steps(rank)):
            check(session.run(reduced), step)
        assert session.run(last) == LONGEST


def tape() -> None:
    """Gradients, dense and from an embedding, and the guard of replicas at the third step."""
    weights = tf.Variable([[1.0], [2.0]])
    table = tf.Variable(tf.ones([4, 2]))
    data = tf.fill([1, 2], float(rank))

    @tf.function
    def step() -> tf.Tensor:
        with tfc.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=True) as gradients:
            loss = tf.reduce_sum((data + tf.gather(table, [rank % 4])) @ weights)
        grads = gradients.gradient(loss, [weights, table])
        for variable, grad in zip([weights, table], grads, strict=True):
            variable.assign_sub(0.0 * tf.convert_to_tensor(grad))
        return grads[0]

    for number in range(steps(rank)):
        expected = np.mean([other + 1.0 for other in there(number)])
        np.testing.assert_allclose(step(), np.full([2, 1], expected, np.float32), rtol=1e-6)
    assert int(tfc.join()) == LONGEST


def refused() -> None:
    if rank != 0:
        try:
            tfc.allreduce(mine(), op=tfc.Max, name="largest")
            raise AssertionError("Max went through")
        except tf.errors.FailedPreconditionError as error:
            assert "rank 0 has joined" in str(error)
        np.testing.assert_array_equal(tfc.allreduce(1, op=tfc.Sum, name="sum"), size - 1)
    tfc.join()


for check_of in (eager, function, graph, tape, *([refused] if size > 1 else [])):
    check_of()
    print("ok", check_of.__name__, flush=True)
