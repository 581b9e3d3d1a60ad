"""Arguments, names and shapes of the collectives on tensors."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.tensorflow as tfc
from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, StateError, UnsupportedError
from tfcollective._base.version import TENSORFLOWS
from tfcollective._runtime.members import Members
from tfcollective._runtime.process_sets import ProcessSet, Registered
from tfcollective.tensorflow import _ops as ops

pytestmark = pytest.mark.tensorflow


def test_before_init_everything_says_what_to_call() -> None:
    with pytest.raises(StateError, match=r"tfcollective.init\(\)"):
        tfc.allreduce(tf.ones(3))


def test_average_is_the_default() -> None:
    with fake_world(size=3):
        assert float(tfc.allreduce(2.0)) == 2.0
        assert float(tfc.allreduce(2.0, op=tfc.Sum)) == 6.0
        with pytest.raises(InvalidArgumentError, match="op: expected Average"):
            tfc.allreduce(2.0, op=7)


def test_sparse_allreduce_averages_values() -> None:
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]), tf.constant([5, 3]))
    with fake_world():
        got = tfc.allreduce(slices)
        with pytest.raises(UnsupportedError, match="sparse_as_dense"):
            tfc.allreduce(slices, op=tfc.Max)
    np.testing.assert_array_equal(got.indices, [0, 4])
    np.testing.assert_array_equal(got.values, np.ones([2, 3]))


def test_groups_are_one_operation_per_dtype() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
    with fake_world() as ops:
        got = tfc.grouped_allreduce([tf.ones(2), slices, tf.ones(3, tf.float64), tf.ones(4)], op=tfc.Sum)
        assert tfc.grouped_allreduce([]) == []
    assert ops.count("grouped_allreduce") == 2
    assert ops.count("allgather") == 2
    assert isinstance(got[1], tf.IndexedSlices)
    np.testing.assert_array_equal(got[3], np.full(4, 2.0))


def test_eager_names_count_calls_of_every_kind() -> None:
    with fake_world() as ops:
        tfc.allreduce(1.0)
        tfc.broadcast(1.0, root_rank=0)
        tfc.allgather([1.0])
        tfc.allreduce(1.0, name="mine")
    kinds = [entry.split()[0] for entry in ops.ran]
    numbers = [int(entry.split("/")[1]) for entry in ops.ran[:3]]
    assert kinds == ["allreduce", "broadcast", "allgather", "allreduce"]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert ops.ran[3] == "allreduce mine"


def test_traced_names_do_not_depend_on_retracing() -> None:
    @tf.function
    def step(x: object) -> object:
        with tf.name_scope("part"):
            y = tfc.allreduce(x)
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tfc.allreduce(y), lambda: y)

    with fake_world() as ops:
        step(tf.ones(2))
        first, ops.ran = ops.ran, []
        step(tf.ones([2, 2]))
    assert first == ops.ran == ["allreduce step/part/collective", "allreduce step/cond/collective"]


def test_shapes_in_functions() -> None:
    @tf.function
    def shapes(x: object) -> object:
        gathered = tfc.allgather(x)
        assert gathered.shape.as_list()[1:] == [3]
        assert tfc.allreduce(x).shape.as_list() == [4, 3]
        assert tfc.broadcast(x, root_rank=0).shape.as_list() == [4, 3]
        return gathered

    with fake_world():
        assert shapes(tf.ones([4, 3])).shape == (8, 3)


def test_bad_arguments_are_named() -> None:
    with fake_world():
        with pytest.raises(InvalidArgumentError, match="root_rank"):
            tfc.broadcast(1.0, root_rank=2)
        with pytest.raises(InvalidArgumentError, match="reducescatter"):
            tfc.reducescatter(1.0)
        with pytest.raises(InvalidArgumentError, match="splits"):
            tfc.alltoall(tf.ones(3))
        with pytest.raises(InvalidArgumentError, match="process_set"):
            tfc.allgather(tf.ones(3), process_set=1.5)
        with pytest.raises(InvalidArgumentError, match="op"):
            tfc.allreduce(1.0, op=6)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: tf.constant(["a"]), "string has no numbers: allgather_object"),
        (lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]), "RaggedTensor: pass its flat_values"),
        (lambda: tf.sparse.from_dense([1.0, 0.0]), "SparseTensor: pass tf.sparse.to_dense"),
    ],
    ids=["string", "ragged", "sparse"],
)
def test_a_non_dense_or_non_numeric_tensor(make: object, named: str, traced: bool) -> None:
    """By the native ops, which refuse the type before they run."""
    calls = [
        lambda: tfc.allreduce(make()),
        lambda: tfc.grouped_allreduce([make(), make()]),
        lambda: tfc.broadcast(make(), root_rank=0),
        lambda: tfc.allgather(make()),
    ]
    with fake_world():
        ops._module = None
        for call in calls:
            with pytest.raises(InvalidArgumentError, match=named):
                (tf.function(call) if traced else call)()


def test_objects_may_hold_what_is_no_dense_tensor() -> None:
    class Bad:
        def __reduce__(self) -> tuple:
            return int, ("no number",)

    with fake_world(), pytest.raises(ValueError, match="no number"):
        tfc.allgather_object([tf.ragged.constant([[1.0]]), Bad()])


@pytest.mark.parametrize("traced", [False, True])
def test_bad_arguments_are_errors_of_tensorflow_too(traced: bool) -> None:
    """With Horovod they are found when the operation runs: programs catch TensorFlow's error."""
    outside = ProcessSet([1])
    calls = {
        "splits": lambda: tfc.alltoall(tf.ones(3)),
        "rank 0 is not one of its ranks 1": lambda: tfc.allreduce(1.0, process_set=outside),
        "rank 0 is not one of its ranks 1 ": lambda: tfc.grouped_allgather([tf.ones(1)], process_set=outside),
        "root_rank": lambda: (
            tfc.broadcast_variables([tf.Variable(1.0)], root_rank=2) if not traced else tfc.broadcast(1.0, root_rank=2)
        ),
    }
    if not traced:
        calls["rank 0 is not one of its ranks  1"] = lambda: tfc.broadcast_object(1, root_rank=1, process_set=outside)
    with fake_world(size=2):
        runtime.current().process_sets._sets[1] = Registered(outside, Members(1, (1,), -1), None)
        outside._register(1, [1], 0)
        for text, call in calls.items():
            with pytest.raises(tf.errors.InvalidArgumentError, match=" ".join(text.split())) as caught:
                (tf.function(call) if traced else call)()
            assert isinstance(caught.value, InvalidArgumentError)
            assert isinstance(caught.value, ValueError)
            again = pickle.loads(pickle.dumps(caught.value))
            assert (type(again), str(again)) == (type(caught.value), str(caught.value))


def test_splits_of_one_rank_are_checked() -> None:
    with fake_world(size=1), pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        tfc.alltoall(tf.ones(3), splits=[2])


def test_one_rank() -> None:
    with fake_world(size=1) as ops:
        assert int(tfc.join()) == 0
        assert float(tfc.allreduce(2.0, prescale_factor=3.0)) == 6.0
        assert tfc.allreduce(tf.constant(5), postscale_factor=2.0).dtype == tf.int32
        assert tfc.allgather(1.0).shape == (1,)
        assert tfc.reducescatter(tf.ones(3)).shape == (3,)
        got, received = tfc.alltoall(tf.ones(3), splits=[3])
        assert got.shape == (3,)
        assert received.numpy().tolist() == [3]
        assert tfc.barrier() is None
        assert tfc.broadcast_object({"a": 1}) == {"a": 1}
        assert tfc.allgather_object("x") == ["x"]
    assert ops.ran == []


def test_untried_versions_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    from tfcollective.tensorflow import _ops as ops

    for minor in TENSORFLOWS:
        ops._warn_of_untried(f"{minor}.1")
    assert not caplog.records
    ops._warn_of_untried("2.99.0")
    assert "2.99.0" in caplog.text


@pytest.mark.parametrize(
    "function",
    [
        *(tfc.allreduce, tfc.grouped_allreduce, tfc.broadcast, tfc.allgather, tfc.reducescatter, tfc.alltoall),
        *(tfc.broadcast_variables, tfc.broadcast_object),
        *(tfc.DistributedGradientTape, tfc.DistributedOptimizer),
    ],
    ids=lambda function: function.__name__,
)
def test_the_help_explains_every_argument(function: Callable[..., object]) -> None:
    arguments = inspect.getdoc(function).partition("\nArgs:\n")[2].partition("\n\n")[0]
    named = [
        line.split(":")[0].strip() for line in arguments.splitlines() if line.startswith("    ") and line[4] != " "
    ]
    assert sorted(named) == sorted(inspect.signature(function).parameters)
