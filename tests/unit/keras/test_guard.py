"""The replica guard: when it checks, and what it says."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective._base.errors import CollectiveMismatchError
from tfcollective.tensorflow._guard import compare_fingerprints, fingerprints

pytestmark = pytest.mark.tensorflow
keras = tf.keras


def steps(count: int, traced: bool, **settings: int) -> list[int]:
    """The steps (from 0) at whose start replicas were compared."""
    variable = tf.Variable([1.0, 2.0])
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])

    run = tf.function(step) if traced else step
    compared = []
    with fake_world(**settings) as ops:
        for number in range(count):
            ops.ran.clear()
            run()
            if ops.count("compare"):
                compared.append(number)
    return compared


@pytest.mark.parametrize("traced", [False, True])
def test_third_step_and_then_ever_more_rarely(traced: bool) -> None:
    assert steps(41, traced, replica_check_steps=15) == [2, 4, 8, 15, 16, 30, 32]


def test_a_traced_step_checks_in_one_op() -> None:
    """Taken apart, a condition costs a switch for each variable in every step."""
    layer = keras.layers.Dense(1)  # its variables are of Keras, in Keras 3
    with tf.device("CPU:0"):
        layer.build((None, 1))
        variables = [tf.Variable([1.0]), *layer.trainable_variables]
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
    step = tf.function(lambda: optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables]))
    with fake_world():
        graph = step.get_concrete_function().graph
    checks = [op for op in graph.get_operations() if op.type == "If"]
    assert [op.get_attr("_lower_using_switch_merge") for op in checks] == [False]


@pytest.mark.parametrize("by_tape", [False, True])
def test_a_traced_step_without_data_is_not_checked(by_tape: bool) -> None:
    """Where data of unknown length end, every rank calls the function once more."""
    variable = tf.Variable([1.0, 1.0])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer = optimizer if by_tape else tfk.DistributedOptimizer(optimizer)

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def step(data: object) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * data)
        tape = tfc.DistributedGradientTape(tape) if by_tape else tape
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    with fake_world():
        graph = step.get_concrete_function().graph
    checks = [op for op in graph.get_operations() if op.type == "If"]
    assert len(checks) == 1
    assert all(graph.inputs[0].op in _before(op) for op in checks)


def _before(op: object) -> set:
    """All that an operation of a graph comes after."""
    found, pending = set(), [op]
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
    return found


def test_never() -> None:
    assert steps(5, False, replica_check_steps=0) == []


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_alternating_lists_of_variables_are_all_compared(count: int, traced: bool) -> None:
    """As one optimizer of both halves of a GAN: each list at its own third step and then rarely."""
    lists = [[tf.Variable(tf.ones([length]))] for length in range(1, count + 1)]
    with fake_world(replica_check_steps=5) as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build([variable for variables in lists for variable in variables])

        def step() -> None:
            for variables in lists:
                optimizer.apply_gradients([(tf.ones(variable.shape), variable) for variable in variables])

        run = tf.function(step) if traced else step
        compared = []
        for _ in range(12):
            ops.ran.clear()
            run()
            compared.append(len({entry for entry in ops.ran if entry.startswith("compare")}))
    assert compared == [count if number in (2, 4, 5, 8, 10) else 0 for number in range(12)]


def gathered(*ranks: object) -> np.ndarray:
    """What the guard gathers: of each rank the fingerprints and a last row; None for a rank that has joined."""
    present = next(rank for rank in ranks if rank is not None)
    row = np.zeros((1, 8), np.uint8)
    row[0, 1] = 1
    return np.stack(
        [np.zeros((len(present) + 1, 8), np.uint8) if r is None else np.concatenate([r, row]) for r in ranks]
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.int64, tf.bool])
def test_a_single_bit_counts(dtype: object) -> None:
    values = [tf.zeros([3, 2], dtype), tf.ones([1], dtype), tf.zeros([], dtype)]
    same = fingerprints(values)
    assert same.shape == (3, 8)
    other = fingerprints([values[0], values[1], tf.ones([], dtype)])
    compared = compare_fingerprints(gathered(same, other, same, other))
    assert compared.variables == [2]
    assert compared.places(2) == [1, 3]
    assert (compared.first, compared.action) == (0, "error")


def test_equal_replicas() -> None:
    mine = fingerprints([tf.ones(3)])
    assert compare_fingerprints(gathered(mine, mine)).variables == []


def test_ranks_that_have_joined_are_not_compared() -> None:
    mine, other = fingerprints([tf.ones(3)]), fingerprints([tf.zeros(3)])
    compared = compare_fingerprints(gathered(None, mine, None, other))
    assert (compared.first, compared.places(0)) == (1, [3])


@pytest.mark.parametrize("traced", [False, True])
def test_the_first_differing_variable_names_the_ranks(traced: bool) -> None:
    variables = [tf.Variable([1.0], name="first"), tf.Variable([1.0], name="second")]
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.0))

    def step() -> None:
        optimizer.apply_gradients([(tf.constant([1.0]), variable) for variable in variables])

    run = tf.function(step) if traced else step
    with fake_world() as ops:
        run()
        run()
        theirs = tf.concat([fingerprints([tf.ones([1]), tf.zeros([1])]), tf.ones([1, 8], tf.uint8)], 0)
        ops.rows_of_others = theirs[tf.newaxis]
        ops.drifts_of_others = (0.5, 1e-6)
        if traced:
            run = tf.function(step)
        error = tf.errors.InvalidArgumentError if traced else CollectiveMismatchError
        with pytest.raises(error, match=r"weights differ(.|\n)*second(.|\n)*\[1\]"):
            run()
    started = [entry for entry in ops.ran if entry.startswith("start")]
    assert len(started) == 2  # else a rank would wait in the third step for those that have left it


def test_hold_and_restart() -> None:
    variable = tf.Variable([1.0])
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer._tfcollective.guard.hold()
        for _ in range(6):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        assert ops.count("compare") == 0
        optimizer._tfcollective.guard.restart()
        for _ in range(3):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        assert ops.count("compare") == 1


def test_a_hold_counts_for_lists_that_come_later() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([1.0, 2.0])]
    with fake_world() as ops:
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(variables)
        optimizer.apply_gradients([(tf.ones([1]), variables[0])])
        optimizer._tfcollective.guard.hold()
        for _ in range(4):
            optimizer.apply_gradients([(tf.ones([2]), variables[1])])
        assert ops.count("compare") == 0
        optimizer._tfcollective.guard.restart()
        for _ in range(3):
            optimizer.apply_gradients([(tf.ones([2]), variables[1])])
        assert ops.count("compare") == 1


def test_callback_broadcasts_before_the_first_step() -> None:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    with fake_world() as ops:
        made.compile(tfk.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        made.fit(
            np.ones((8, 3), np.float32),
            np.ones((8, 1), np.float32),
            batch_size=2,
            verbose=0,
            callbacks=[tfk.BroadcastGlobalVariablesCallback(0)],
        )
    kinds = [entry.split()[0] for entry in ops.ran]
    first_step = kinds.index("start")
    assert kinds[:first_step] == ["broadcast"] * first_step
    assert first_step >= 2 + 4  # kernel, bias, two slots each
    assert kinds.count("compare") == 1  # the guard, at the third step


def test_callback_broadcasts_an_unbuilt_model_later() -> None:
    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = None

        def build(self, shape: object = None) -> None:
            self.dense = keras.layers.Dense(1)
            self.built = True

        def call(self, x: object) -> object:
            return self.dense(x)

    made = Late()
    with fake_world() as ops:
        made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD()), "mse", run_eagerly=True)
        made.fit(
            np.ones((8, 3), np.float32),
            np.ones((8, 1), np.float32),
            batch_size=2,
            verbose=0,
            callbacks=[tfk.BroadcastGlobalVariablesCallback(0)],
        )
    assert ops.count("broadcast") > 0


@pytest.mark.parametrize("kind", ["tape", "optimizer"])
def test_a_function_that_was_traced_without_it_before(kind: str) -> None:
    """Horovod's way to build a model on the first batch: the first trace makes the variables, the second one trains."""
    held: list = []
    optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))

    @tf.function
    def step(first_batch: bool) -> tf.Tensor:
        if not held:
            held.append(tf.Variable([1.0, 2.0]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(held[0] ** 2)
        if first_batch:
            return loss
        if kind == "tape":
            gradients = tfc.DistributedGradientTape(tape).gradient(loss, held)
            held[0].assign_sub(gradients[0])
        else:
            optimizer.apply_gradients(zip(tape.gradient(loss, held), held))
        return loss

    with fake_world() as ops:
        step(True)
        optimizer.build(held)
        for _ in range(3):
            step(False)
    assert ops.count("start") == 3
    assert ops.count("compare") == 1
