"""Every collective on tensors, with exact results, in every mode of execution. Runs on any number of ranks."""

from __future__ import annotations

import threading
import time

import numpy as np
import tensorflow as tf

import tfcollective.horovod.tensorflow as tfc

tfc.init()
rank, size = tfc.rank(), tfc.size()
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]


def equal(got: object, expected: object) -> None:
    got = tf.cast(got, tf.float64) if getattr(got, "dtype", None) is not None else got
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected, np.float64))


def mine(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape) % 5 + rank


def everyone(*shape: int) -> list[np.ndarray]:
    return [np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape) % 5 + r for r in range(size)]


def dtypes_and_shapes() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in [(), (0,), (1,), (3, 5), (1031,)]:
            equal(tfc.allreduce(tf.cast(mine(*shape), dtype), op=tfc.Sum), sum(everyone(*shape)))
        equal(tfc.allgather(tf.cast(mine(2), dtype)), np.concatenate(everyone(2)))
        equal(tfc.broadcast(tf.cast(mine(2), dtype), root_rank=size - 1), everyone(2)[-1])
    equal(tfc.allreduce(mine(4), op=tfc.Min), everyone(4)[0])
    equal(tfc.allreduce(mine(4), op=tfc.Max), everyone(4)[-1])
    equal(tfc.allreduce(mine(4), op=tfc.Product), np.prod(everyone(4), axis=0))
    equal(tfc.allreduce(mine(4), op=tfc.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * sum(everyone(4)))
    ones = tf.ones(size, tf.float64)  # a tenth and a third as float32 are wrong by 1e-8
    tenths = tfc.allreduce(ones, op=tfc.Sum, prescale_factor=0.1)
    thirds = tfc.grouped_allreduce([ones], postscale_factor=1 / 3)[0]
    for got, exact in [
        (tenths, 0.1 * size),
        (thirds, 1 / 3),
        (tfc.reducescatter(ones, postscale_factor=0.1), 0.1),
    ]:
        np.testing.assert_allclose(got, np.full(got.shape, exact), rtol=1e-15)
    if size > 1:
        try:
            tfc.allreduce(ones, prescale_factor=float("inf"))
            raise AssertionError("an infinite factor was taken")
        except tf.errors.InvalidArgumentError as error:
            assert "prescale must be a finite number, not 'inf'" in str(error)
    equal(tfc.allreduce(tf.fill([4], tf.constant(200, tf.uint8))), np.full(4, 200))
    for length in (4, 400000):
        equal(tfc.allreduce(tf.fill([length], tf.constant(40000, tf.float16))), np.full(length, 40000))
    flags = tf.constant([rank == 0, True])
    assert tfc.broadcast(flags, root_rank=0).numpy().tolist() == [True, True]
    assert tfc.allgather(flags).numpy().tolist() == [True, True] + [False, True] * (size - 1)


def ragged_and_scattered() -> None:
    gathered = tfc.allgather(tf.fill([rank, 2], rank))
    equal(gathered, np.concatenate([np.full((r, 2), r) for r in range(size)]))
    rows = 2 * size + 1
    own = [len(part) for part in np.array_split(np.arange(rows), size)]
    start = sum(own[:rank])
    equal(tfc.reducescatter(mine(rows, 3), op=tfc.Sum), sum(everyone(rows, 3))[start : start + own[rank]])
    equal(tfc.alltoall(tf.fill([size], rank)), np.arange(size))
    got, received = tfc.alltoall(tf.fill([sum(range(size))], rank), splits=list(range(size)))
    equal(got, np.repeat(np.arange(size), rank))
    assert received.numpy().tolist() == [rank] * size
    tfc.barrier()


def groups_and_slices() -> None:
    slices = tf.IndexedSlices(tf.fill([1, 2], float(rank)), tf.constant([rank]), tf.constant([size, 2]))
    got = tfc.grouped_allreduce([mine(3), slices, tf.cast(mine(2), tf.float32)], op=tfc.Sum)
    equal(got[0], sum(everyone(3)))
    equal(tf.convert_to_tensor(got[1]), np.arange(size)[:, None] * np.ones(2))
    equal(got[2], sum(everyone(2)))
    for compression in (tfc.Compression.fp16, tfc.Compression.bf16):
        small = tfc.allreduce(tf.cast(mine(7), tf.float32), op=tfc.Sum, compression=compression)
        assert small.dtype == tf.float32
        equal(small, sum(everyone(7)))


def in_functions() -> None:
    @tf.function
    def looped(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tfc.allreduce(x, op=tfc.Sum)
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tfc.broadcast(x, root_rank=0), lambda: x)

    equal(looped(tf.ones(2)), np.full(2, float(size**3)))

    @tf.function
    def unused(x: tf.Tensor) -> tf.Tensor:
        tfc.allreduce(x)  # stateful: runs although its result is not used
        tfc.barrier()
        return x

    unused(tf.constant(1.0))


def in_a_v1_graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([float(rank)]))
        everywhere = tfc.broadcast_variables([variable], root_rank=size - 1)
        total = tfc.allreduce(variable, op=tfc.Sum)
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(total)[0] == sum(range(size))
        session.run(everywhere)
        assert session.run(variable)[0] == size - 1
        session.run(variable.assign([float(rank)]))
        assert session.run(tfc.broadcast_([variable], 0))[0][0] == session.run(variable)[0] == 0.0


def gradients() -> None:
    weights = [mine(3) for _ in range(size)]  # what rank r's loss multiplies

    def gradient_of(function: object, x: np.ndarray, seed: object) -> tf.Tensor:
        variable = tf.Variable(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(variable) * seed)
        return tape.gradient(loss, variable)

    def check(function: object, x: np.ndarray, seed: object, expected: object) -> None:
        equal(gradient_of(function, x, seed), expected)

    check(lambda v: tfc.allreduce(v, op=tfc.Sum), mine(3), weights[rank], sum(everyone(3)))
    check(lambda v: tfc.allreduce(v, prescale_factor=size), mine(3), weights[rank], sum(everyone(3)))
    check(lambda v: tfc.grouped_allreduce([v], op=tfc.Sum)[0], mine(3), weights[rank], sum(everyone(3)))
    seeds = [np.arange(2.0 * size) + r for r in range(size)]
    averages = sum(everyone(3)) / size
    check(lambda v: tfc.allgather(v) * size, mine(2), seeds[rank], sum(seeds)[2 * rank : 2 * rank + 2])
    check(lambda v: tfc.broadcast(v, root_rank=0), mine(3), weights[rank], averages if rank == 0 else np.zeros(3))
    check(tfc.reducescatter, mine(size), [float(rank + 1)], np.arange(size) + 1.0)
    check(lambda v: tfc.reducescatter(v, op=tfc.Sum), mine(size), [float(rank + 1)], size * (np.arange(size) + 1.0))
    check(tfc.alltoall, mine(size), np.full(size, rank + 1.0), np.arange(size) + 1.0)

    @tf.function
    def traced() -> tf.Tensor:
        x = tf.constant(mine(3))
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tfc.allreduce(x, op=tfc.Sum) * weights[rank])
        return tape.gradient(loss, x)

    equal(traced(), sum(everyone(3)))


def gradients_of_gradients() -> None:
    def second(function: object, rows: int) -> tf.Tensor:
        x = tf.constant(mine(rows))
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(function(x) ** 2)
            first = tf.reduce_sum(inner.gradient(loss, x))
        return outer.gradient(first, x)

    at_root = 2.0 / size if rank == 0 else 0.0
    for wrap in (lambda call: call, tf.function):
        equal(wrap(lambda: second(lambda v: tfc.allreduce(v, op=tfc.Sum), 3))(), np.full(3, 2.0 * size**2))
        equal(wrap(lambda: second(lambda v: tfc.grouped_allreduce([v])[0], 3))(), np.full(3, 2.0))
        equal(wrap(lambda: second(tfc.allgather, 3))() * size, np.full(3, 2.0))
        equal(wrap(lambda: second(lambda v: tfc.broadcast(v, root_rank=0), 3))(), np.full(3, at_root))
        equal(wrap(lambda: second(lambda v: tfc.reducescatter(v, op=tfc.Sum), size))(), np.full(size, 2.0 * size**2))
        equal(wrap(lambda: second(tfc.alltoall, size))(), np.full(size, 2.0))


def adasum() -> None:
    if size & (size - 1):
        try:
            tfc.allreduce(mine(3), op=tfc.Adasum)
        except NotImplementedError as error:
            assert "power of two" in str(error), error
        else:
            raise AssertionError("no error")
        return
    vectors = [v * (-1.0) ** r + r for r, v in enumerate(everyone(7))]
    expected = vectors[0]
    for other in vectors[1:]:  # one level: 2 ranks at most
        ab, aa, bb = expected @ other, expected @ expected, other @ other
        expected = (1 - ab / (2 * aa)) * expected + (1 - ab / (2 * bb)) * other
    got = tfc.allreduce(vectors[rank].reshape(7, 1), op=tfc.Adasum)
    np.testing.assert_allclose(got, expected.reshape(7, 1), rtol=1e-12)
    small = tfc.grouped_allreduce([tf.cast(vectors[rank], tf.float16)], op=tfc.Adasum)[0]
    assert small.dtype == tf.float16
    np.testing.assert_allclose(small, expected, rtol=2e-3)
    variable = tf.Variable(vectors[rank])

    @tf.function
    def step() -> tf.Tensor:
        with tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Adasum) as recorded:
            loss = tf.reduce_sum(variable * vectors[rank])
        return recorded.gradient(loss, variable)

    tfc.broadcast_variables([variable], root_rank=0)
    np.testing.assert_allclose(step(), expected, rtol=1e-12)


def objects() -> None:
    assert tfc.broadcast_object({"rank": rank}, root_rank=0) == {"rank": 0}
    assert tfc.broadcast_object_fn(size - 1, name="named")([rank]) == [size - 1]
    assert tfc.allgather_object(("x" * rank, rank)) == [("x" * r, r) for r in range(size)]


def tape() -> None:
    shared, table = tf.Variable(mine(4)), tf.Variable(tf.ones([size, 2], tf.float64))
    tfc.broadcast_variables([shared], root_rank=0)
    equal(shared, everyone(4)[0])

    @tf.function
    def step() -> list:
        with tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum) as recorded:
            loss = tf.reduce_sum(shared * (rank + 1.0)) + tf.reduce_sum(tf.gather(table, [rank]))
        return recorded.gradient(loss, [shared, table])

    for _ in range(3):
        dense, sparse = step()
        equal(dense, np.full(4, sum(range(size + 1))))
        equal(tf.convert_to_tensor(sparse), np.ones([size, 2]))


def threads_may_differ_in_order() -> None:
    """Two named operations at once, handed over in opposite order on odd ranks."""
    results = {}

    def run(name: str, delay: float) -> None:
        time.sleep(delay)  # so that the order differs
        results[name] = tfc.allreduce(1.0, op=tfc.Sum, name=name)

    delays = [0.0, 0.1] if rank % 2 else [0.1, 0.0]
    both = [threading.Thread(target=run, args=(name, delay)) for name, delay in zip("ab", delays, strict=True)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert [float(results[name]) for name in "ab"] == [size, size]


def mismatches_are_shown_to_all_and_survived() -> None:
    if size == 1:
        return
    for kwargs in ({"x": tf.ones(3 + rank % 2)}, {"x": tf.ones(3, tf.float64 if rank % 2 else tf.float32)}):
        try:
            tfc.allreduce(kwargs["x"], name="clash")
        except tf.errors.FailedPreconditionError as error:
            assert "rank" in str(error), error
        else:
            raise AssertionError("no error")
    try:
        tfc.allgather(tf.ones(1)) if rank % 2 else tfc.allreduce(tf.ones(1))
    except tf.errors.FailedPreconditionError as error:
        text = str(error).lower()
        assert "gather" in text and "reduce" in text, error
    else:
        raise AssertionError("no error")
    equal(tfc.allreduce(mine(3), op=tfc.Sum), sum(everyone(3)))


for check in (
    dtypes_and_shapes,
    ragged_and_scattered,
    groups_and_slices,
    in_functions,
    in_a_v1_graph,
    gradients,
    gradients_of_gradients,
    adasum,
    objects,
    tape,
    threads_may_differ_in_order,
    mismatches_are_shown_to_all_and_survived,
):
    check()
    print("ok", check.__name__, flush=True)
tfc.shutdown()
