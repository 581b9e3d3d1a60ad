"""Collectives in functions that XLA compiles, with the results of the same functions without XLA. Runs on any number of
ranks. With an argument, rank 1 fails: job_xla.py exit or other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfcollective.tensorflow as tfc
from tfcollective._base.errors import UnsupportedError

tfc.init()
rank, size = tfc.rank(), tfc.size()
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int32, tf.int64, tf.uint8, tf.bool]
variable = tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3))
bias = tf.Variable([0.5, -1.0, 2.0])


def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    return tf.function(function, jit_compile=True, **options)


def same(function: Callable[..., object], *inputs: object) -> None:
    """With and without XLA; one after the other, as both have the same names."""
    expected = tf.nest.flatten(tf.function(function)(*inputs))
    for _ in range(2):
        for got, wanted in zip(tf.nest.flatten(compiled(function)(*inputs)), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def dtypes() -> None:
    def reduce(x: tf.Tensor) -> list:
        some = [tfc.broadcast(x, root_rank=size - 1, name="b"), tfc.allgather(x, name="g")]
        op = tfc.Max if x.dtype == tf.bool else tfc.Sum
        return [*some, tfc.allreduce(x, op=op, name="a"), *tfc.grouped_allreduce([x, x[:1]], op=op, name="several")]

    for dtype in DTYPES:
        same(reduce, tf.cast(np.arange(6).reshape(3, 2) % 3 + rank, dtype))


def kinds() -> None:
    def reduce(x: tf.Tensor) -> list:
        tfc.barrier(name="all")
        mean = tfc.allreduce(x, name="mean", prescale_factor=0.5)
        return [mean, tfc.reducescatter(x, op=tfc.Sum, name="part"), tfc.allreduce(x[0, 0], name="scalar")]

    same(reduce, tf.reshape(tf.range(10.0 * size), [-1, 5]) * (rank + 1))


def gradients() -> None:
    def of(x: tf.Tensor) -> list:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            gathered = tf.reduce_sum(tfc.allgather(x * x, name="g") ** 2)
            reduced = tf.reduce_sum(tfc.allreduce(x * x, name="a") ** 2)
            grouped = tf.reduce_sum(tfc.grouped_allreduce([x * x, x], name="several")[0])
            sent = tf.reduce_sum(tfc.broadcast(x * x, root_rank=0, name="b"))
            part = tf.reduce_sum(tfc.reducescatter(x * x, name="part") ** 2)
        return [tape.gradient(one, x) for one in (gathered, reduced, grouped, sent, part)]

    same(of, tf.range(1.0, 2.0 * size + 1) + rank)


def loops_and_branches() -> None:
    @compiled
    def run(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tfc.allreduce(x, op=tfc.Sum, name="loop")
        if tf.reduce_sum(x) > 0:
            x = tfc.allreduce(x, name="branch")
        return x

    np.testing.assert_array_equal(run(tf.ones(3)), np.full(3, size**3))


def functions_of_several_functions() -> None:
    @tf.function
    def within(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0:
            x = tfc.allreduce(x, op=tfc.Sum, name="within")
        return tfc.allreduce(x, op=tfc.Sum, name="then")

    def run(x: tf.Tensor) -> tf.Tensor:
        tfc.barrier(name="before")
        return within(tfc.allreduce(x, op=tfc.Sum, name="around")[:2]) + within(tf.ones(2))

    for length in (2, 3):  # each is a function of its own
        np.testing.assert_array_equal(compiled(run)(tf.ones(length)), np.full(2, size**3 + size**2))


def shapes_that_are_known_later() -> None:
    run = compiled(
        lambda x: tfc.allreduce(x, op=tfc.Sum, name="later"), input_signature=[tf.TensorSpec([None, 2, None])]
    )
    for shape in ([3, 2, 1], [1, 2, 4], [0, 2, 5]):
        np.testing.assert_array_equal(run(tf.ones(shape)), np.full(shape, size))


def training() -> None:
    def step(x: tf.Tensor) -> list:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ variable + bias) ** 2)
        return tfc.DistributedGradientTape(tape, groups=2).gradient(loss, [variable, bias])

    x = tf.reshape(tf.range(8.0), [4, 2]) + rank
    for got, wanted in zip(compiled(step)(x), tf.function(step)(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def what_xla_cannot() -> None:
    for wrong, function in (
        ("alltoall", lambda x: tfc.alltoall(x, name="wrong")),
        ("join", lambda x: tfc.join()),
        ("can be parted equally", lambda x: tfc.reducescatter(tf.ones(size + 1), name="wrong")),
        ("how many rows", lambda x: tfc.allgather(x, name="wrong")),
    ):
        try:
            compiled(function, input_signature=[tf.TensorSpec([None])], autograph=False)(tf.ones(4))
            raise AssertionError(f"{wrong} was compiled")
        except UnsupportedError as error:
            assert wrong in str(error), error
    try:
        compiled(lambda x: tfc.allgather(x, name="uneven"))(tf.ones(2 + rank))
        raise AssertionError("rows of unequal number were gathered")
    except tf.errors.InvalidArgumentError as error:
        assert "'uneven': the compiled program has its result in another shape" in str(error), error


def fail(kind: str) -> None:
    run = compiled(lambda x: tfc.allreduce(x, name="first"))
    run(tf.ones(3))
    if rank == 1 and kind == "exit":
        os._exit(7)
    if kind == "other":
        run = compiled(lambda x: tfc.allreduce(x, name="other", op=tfc.Sum if rank == 0 else tfc.Average))
    try:
        run(tf.ones(3))
    except tf.errors.OpError as error:
        print(f"{type(error).__name__}: {error.message}", flush=True)


if len(sys.argv) > 1:
    fail(sys.argv[1])
else:
    for check in (
        dtypes,
        kinds,
        gradients,
        loops_and_branches,
        functions_of_several_functions,
        shapes_that_are_known_later,
        training,
    ):
        check()
        print("ok", check.__name__, flush=True)
    if size > 1:
        what_xla_cannot()
        print("ok what_xla_cannot", flush=True)
    tfc.shutdown()
