"""Gradient reduction over imagined ranks: what is emitted, in which order, with which arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeOps, fake_world

import tfcollective.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow._aggregation import GradientAggregation
from tfcollective.tensorflow._external_ops import WithoutPlans

pytestmark = pytest.mark.tensorflow


def variables(count: int, length: int = 8) -> list:
    return [tf.Variable(tf.ones([length]) * (i + 1), name=f"v{i}") for i in range(count)]


def loss_of(sources: list) -> object:
    return tf.add_n([tf.reduce_sum(v * v) for v in sources])


def gradients_of(sources: list, **options: object) -> list:
    with tfc.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = loss_of(sources)
    return tape.gradient(loss, sources)


@pytest.mark.parametrize("traced", [False, True])
def test_all_buckets_start_before_any_is_awaited(traced: bool) -> None:
    sources = variables(6)
    run = tf.function(lambda: gradients_of(sources)) if traced else lambda: gradients_of(sources)
    with fake_world(bucket_bytes=64) as ops:
        got = run()
    assert [entry.split()[0] + entry.split()[2] for entry in ops.ran] == [
        "start0", "start1", "start2", "done0", "done1", "done2",
    ]  # fmt: skip
    lines = next(iter(ops.signatures.values())).splitlines()
    assert [line.partition("\t")[2] for line in lines] == [f"(v{i}:0)" for i in reversed(range(6))]
    for index, gradient in enumerate(got):
        np.testing.assert_array_equal(gradient, np.full(8, 2.0 * (index + 1), np.float32))


def test_v1_graph_mode_starts_everything_first() -> None:
    with fake_world(bucket_bytes=32) as ops, tf.Graph().as_default(), tf.compat.v1.Session() as session:
        sources = [tf.compat.v1.get_variable(f"g{i}", initializer=tf.ones([8])) for i in range(4)]
        optimizer = tfc.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        pairs = optimizer.compute_gradients(tf.add_n([tf.reduce_sum(v * v) for v in sources]), sources)
        step = optimizer.apply_gradients(pairs)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_array_equal(session.run(sources[0]), np.zeros(8))
    assert {entry.split()[0] for entry in ops.ran[:4]} == {"start"}
    assert {entry.split()[0] for entry in ops.ran[4:]} == {"done"}


def test_none_stays_none_and_structure_is_kept() -> None:
    used, unused = variables(2)
    with fake_world():
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(used * 3.0)
        got = tape.gradient(loss, {"a": used, "b": [unused]})
    assert got["b"] == [None]
    np.testing.assert_array_equal(got["a"], np.full(8, 3.0))


def test_a_single_source_gives_a_single_gradient() -> None:
    source = tf.Variable(2.0)
    with fake_world(), tfc.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = source * source
        assert float(tape.gradient(loss, source)) == 4.0


def test_a_persistent_recording_tape_can_be_wrapped() -> None:
    source = tf.Variable(3.0)
    with fake_world(), tf.GradientTape(persistent=True) as tape:
        loss = source * source
        wrapped = tfc.DistributedGradientTape(tape, op=tfc.Sum)
        assert float(wrapped.gradient(loss, source)) == 12.0
        assert float(tape.gradient(loss, source)) == 6.0
        assert isinstance(wrapped, tf.GradientTape)


def test_sparse_gradients_are_gathered_between_start_and_done() -> None:
    table, dense = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([2]))
    with fake_world() as ops:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 3]) * dense)
        got = tape.gradient(loss, [table, dense])
    assert isinstance(got[0], tf.IndexedSlices)
    np.testing.assert_array_equal(got[0].indices, [1, 3])
    np.testing.assert_array_equal(tf.convert_to_tensor(got[0])[1], [1.0, 1.0])
    assert [entry.split()[0] for entry in ops.ran] == ["start", "allgather", "allgather", "done"]


def test_sparse_as_dense() -> None:
    table = tf.Variable(tf.ones([5, 2]))
    with fake_world() as ops:
        with tfc.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=True) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 1]))
        got = tape.gradient(loss, [table])
    assert ops.count("allgather") == 0
    np.testing.assert_array_equal(got[0][1], [2.0, 2.0])


def test_compression_is_of_the_wire_only() -> None:
    with fake_world() as ops:
        got = gradients_of(variables(2), compression=tfc.Compression.bf16)
    assert all(g.dtype == tf.float32 for g in got)
    assert all(" bfloat16 " in line for line in next(iter(ops.signatures.values())).splitlines())


def test_predivide_factor_becomes_scales() -> None:
    with fake_world() as ops:
        got = gradients_of(variables(1), gradient_predivide_factor=4.0)
    assert "average prescale=0.25 postscale=4.0" in next(iter(ops.signatures.values()))
    np.testing.assert_array_equal(got[0], np.full(8, 2.0))


@pytest.mark.parametrize(("options", "buckets"), [({"groups": 2}, 2), ({"groups": 3}, 3), ({}, 1)])
def test_number_of_groups(options: dict, buckets: int) -> None:
    with fake_world() as ops:
        gradients_of(variables(6), **options)
    assert ops.count("start") == buckets


def test_groups_of_variables() -> None:
    sources = variables(4)
    with fake_world() as ops:
        gradients_of(sources, groups=[[sources[0], sources[3]]])
    assert [line.split(":")[0] for line in next(iter(ops.signatures.values())).splitlines()] == [
        "bucket 0", "bucket 0", "bucket 1", "bucket 1",
    ]  # fmt: skip


def test_local_sources_are_scaled_but_not_sent() -> None:
    shared, local = variables(2)
    with fake_world() as ops:
        tape = tfc.DistributedGradientTape(tf.GradientTape())
        tape.register_local_source(local)
        with tape:
            loss = loss_of([shared, local])
        got = tape.gradient(loss, [shared, local])
    np.testing.assert_array_equal(got[1], np.full(8, 2.0))  # 2 * 2 / 2 ranks
    assert len(next(iter(ops.signatures.values())).splitlines()) == 1


def test_tracing_again_finds_the_plan_again() -> None:
    sources = variables(3)

    @tf.function
    def step(_batch: object) -> list:
        return gradients_of(sources)

    with fake_world() as ops:
        step(tf.ones([4]))
        step(tf.ones([3, 2]))
    assert len(ops.signatures) == 1
    assert ops.count("start") == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [({"op": tfc.Min}, UnsupportedError), ({"process_set": object()}, InvalidArgumentError)],
)
def test_what_is_not_supported_is_named(options: dict, error: type) -> None:
    with pytest.raises(error, match=next(iter(options))):
        tfc.DistributedGradientTape(tf.GradientTape(), **options)


def test_predivide_needs_average() -> None:
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor"):
        tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum, gradient_predivide_factor=2.0)


def test_one_rank_communicates_nothing() -> None:
    with fake_world(size=1) as ops:
        gradients_of(variables(3))
        tfc.broadcast_variables(variables(2), root_rank=0)
    assert ops.ran == []


@pytest.mark.parametrize("traced", [False, True])
def test_replicas_are_compared_from_the_third_call(traced: bool) -> None:
    source = tf.Variable(1.0, name=f"guarded_{traced}")

    def gradient() -> object:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = source * source
        return tape.gradient(loss, source)

    run = tf.function(gradient) if traced else gradient
    compared = []
    with fake_world(replica_check_steps=7) as ops:
        for number in range(40):
            ops.ran.clear()
            run()
            compared.append(ops.count("compare"))
            if number >= 4:
                source.assign_sub(0.1)
    # The third call finds that nothing has changed; so does the third after a pause find that something has.
    assert [number for number, count in enumerate(compared) if count] == [2, 25, 27, 30, 31, 37, 39]


def test_a_plan_has_the_shapes_of_variables() -> None:
    """A rank whose last batch is smaller traces for batches of any size."""
    kernel, bias = tf.Variable(tf.ones([3, 2]), name="kernel"), tf.Variable(tf.ones([2]), name="bias")

    def step(batch: object) -> list:
        with tfc.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.tensordot(batch, kernel, 1) + bias)
        return tape.gradient(loss, [kernel, bias])

    signatures = []
    for rows, known in ((4, 3), (None, None)):
        with fake_world(bucket_bytes=8) as ops:
            traced = tf.function(step).get_concrete_function(tf.TensorSpec([rows, 2, 3]))
        assert traced.structured_outputs[0].shape.as_list() == [known, 2]  # as the gradients themselves are
        signatures.append(ops.signatures)
    assert signatures[0] == signatures[1]
    assert [line.split(" ", 4)[4].split()[0] for line in signatures[1]["tape#0"].splitlines()] == ["[2]", "[3,2]"]


def test_passes_add_gradients_of_unknown_shape() -> None:
    variable = tf.Variable([1.0, 2.0])
    sums = GradientAggregation(2, average=False)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def add(gradient: object) -> object:
        return sums.add([gradient], [variable])

    assert not add(tf.constant([1.0, 1.0]))
    assert add(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(sums.take([True])[0], [2.0, 3.0])


@pytest.mark.parametrize("count", [1, 2])
def test_passes_of_other_variables_are_refused(count: int) -> None:
    """Two lists of one length, or of two: their gradients do not belong into one sum."""
    sums, sources = GradientAggregation(2, average=False), variables(3)
    sums.add([tf.ones([8])], sources[:1])
    with pytest.raises(InvalidArgumentError, match="not the same 1 as in the first"):
        sums.add([tf.ones([8])] * count, sources[-count:])


def test_engines_without_plans_negotiate_buckets() -> None:
    with fake_world(bucket_bytes=64, wrapped=NamedOps) as fake:
        got = gradients_of(variables(4), op=tfc.Sum)
    assert fake.count("start") == 0
    assert fake.count("grouped_allreduce tape#") == 2
    for index, gradient in enumerate(got):
        np.testing.assert_array_equal(gradient, np.full(8, 4.0 * (index + 1)))


class NamedOps(WithoutPlans):
    """An engine that knows no plans, with the arithmetic of a fake world."""

    def __init__(self, fake: FakeOps) -> None:
        self._fake = fake

    def tfcollective_grouped_allreduce(self, *arguments: Any) -> list[Any]:
        return self._fake.tfcollective_grouped_allreduce(*arguments)
